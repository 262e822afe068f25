"""Word the messages about wrong settings, without the secrets in them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping

from celery_reliable.errors import ConfigurationError

_LONGEST = 80


def error(title: str, problems: Iterable[str]) -> ConfigurationError:
    """Return one error with all problems, one a line."""
    return ConfigurationError("\n".join([f"{title}:", *(f"  {problem}" for problem in problems)]))


def shown(value: object) -> str:
    """Show a wrong value and its type; of a text with an unclear user part nothing at all."""
    if "@" in repr(value) and not _are_urls(value):
        return f"a {'text' if isinstance(value, str) else type(value).__name__} that may hold a password"
    return f"{mask_secrets(repr(value))[:_LONGEST]} ({type(value).__name__})"


def _are_urls(value: object) -> bool:
    several = value if isinstance(value, list | tuple) else (value,)
    return all(isinstance(one, str) and re.match(r"\w[\w+.-]*://", one) for one in several)


def mask_secrets(text: str) -> str:
    """Replace the user part of every URL, and what its query calls a password, by ``***``.

    A password may hold anything, spaces, quotes and slashes too: what is masked ends at the last @ before the next URL.
    """
    return _IN_QUERY.sub(r"\1***", _IN_FRONT.sub(r"\1***@", text))


_IN_FRONT = re.compile(r"(://)(?:(?![\s,;'\"(\[]\w[\w+.-]*://).)*@", re.DOTALL)
_IN_QUERY = re.compile(r"([?&;][\w-]*(?:pass|pwd|secret|token|key|sig)[\w-]*=)[^&\s]*", re.IGNORECASE)


def spelled(name: str, namespace: str) -> str:
    """Spell a setting as Celery reads it in that namespace."""
    if not namespace:
        return name
    return (namespace + name).upper() if namespace.isupper() else (namespace + name).lower()


def nearest(name: str, spellings: Mapping[str, str]) -> str:
    """Offer the known name that is most like this one, if any is, in its spelling."""
    found = difflib.get_close_matches(name, spellings, n=1, cutoff=0.5)
    return f"did you mean {spellings[found[0]]}?" if found else "no name is like it."
