"""Show counts: django.contrib.humanize is not in every project."""

from __future__ import annotations

from django import template

register = template.Library()


@register.filter  # type: ignore[untyped-decorator]  # Django is not typed
def thousands(number: int) -> str:
    """Return ``1,204,000``."""
    return f"{number:,}"
