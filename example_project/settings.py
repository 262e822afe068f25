"""Read from the environment what differs between one installation of the shop and the next."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

PREFIX = "SHOP_"


@dataclass(frozen=True, slots=True)
class Settings:
    """Where the shop's neighbours are and how long its work takes. Durations are in seconds.

    Each field is an environment variable: ``payment_url`` is ``SHOP_PAYMENT_URL``.
    """

    broker_url: str = "redis://127.0.0.1:6379/0"
    ledger_url: str = "sqlite:///shop-ledger.sqlite3"
    payment_url: str = "http://127.0.0.1:8402"
    reports_directory: str = "reports"
    opened_at: float = 0.0
    """When day 1 began, in seconds since 1970."""
    day_seconds: float = 86400.0
    collect_every: float = 300.0
    sections: int = 60
    section_seconds: float = 2.0
    lease_ttl: float = 15.0
    drain_timeout: float = 30.0
    retry_backoff: float = 1.0

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """Take what the environment sets, the defaults for the rest."""
        given = os.environ if environment is None else environment
        names = ((field.name, PREFIX + field.name.upper()) for field in fields(cls))
        return cls(**{name: _typed(name, given[variable]) for name, variable in names if variable in given})

    def to_environment(self) -> dict[str, str]:
        """Return the variables from which `from_environment` reads the same settings."""
        return {PREFIX + field.name.upper(): str(getattr(self, field.name)) for field in fields(self)}


def _typed(name: str, text: str) -> Any:
    """Read a text as the type of the field's default."""
    wanted = type(getattr(Settings(), name))
    try:
        return wanted(text)
    except ValueError as exc:
        msg = f"expected {wanted.__name__}, found {text!r} in {PREFIX}{name.upper()}: correct or unset that variable"
        raise ValueError(msg) from exc
