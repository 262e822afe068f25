"""MariaDB without a server: which one is refused, and what its errors mean."""

from __future__ import annotations

from typing import Any

import pytest
from pymysql.err import DataError, IntegrityError, InternalError, OperationalError, ProgrammingError

from celery_reliable.errors import ConfigurationError, StoreError, StoreFull, StoreUnavailable
from celery_reliable.stores.sql import open_sql_store
from celery_reliable.stores.sql.django import _bounded, server_of
from celery_reliable.stores.sql.errors import duplicate_of, is_again, is_away, is_duplicate, translated
from celery_reliable.stores.sql.link import prepare_mariadb


class Server:
    """A connection to a server of some version, which is told nothing."""

    def __init__(self, version: str) -> None:
        """Take what the server says of itself."""
        self._version = version

    def get_server_info(self) -> str:
        """As PyMySQL."""
        return self._version


@pytest.mark.parametrize("version", ["8.0.36", "9.1.0-commercial", "5.5.5-10.5.23-MariaDB-log", "10.3.39-MariaDB", ""])
def test_another_server_is_refused_at_the_first_connection(version: str) -> None:
    """MySQL, and a MariaDB without SKIP LOCKED: better than a syntax error in the middle of a task."""
    with pytest.raises(
        ConfigurationError, match=f"reliable_store_url: expected MariaDB 10.6 or newer, found {version}"
    ):
        prepare_mariadb(Server(version), timeout=5.0)


@pytest.mark.parametrize(
    "version", ["5.5.5-10.6.0-MariaDB", "10.11.18-MariaDB-0+deb12u1", "11.4.2-MariaDB", "12.0.1-MariaDB"]
)
def test_a_newer_one_is_not(version: str) -> None:
    """Then it is told what the store needs."""
    with pytest.raises(AttributeError, match="cursor"):
        prepare_mariadb(Server(version), timeout=5.0)


class Alias:
    """Django's connection to a server of some version."""

    def __init__(self, version: str, *, vendor: str = "mysql") -> None:
        """Take what the server says of itself."""
        self.vendor, self.connection = vendor, Server(version)
        self.settings_dict: dict[str, Any] = {"OPTIONS": {"read_timeout": 9}}

    def ensure_connection(self) -> None:
        """As Django's."""


def test_migrations_make_tables_where_something_can_use_them() -> None:
    """A project on MySQL that keeps its store in Redis has the app, and its migrations pass."""
    assert server_of(Alias("11.4.2-MariaDB")) == "mariadb"
    assert server_of(Alias("", vendor="postgresql")) == "postgresql"
    assert [server_of(Alias("8.0.36")), server_of(Alias("10.3.39-MariaDB")), server_of(Alias("", vendor="oracle"))] == [
        "",
        "",
        "",
    ]


def test_waits_for_the_server_of_an_alias_are_bounded() -> None:
    """In whole seconds, as mysqlclient wants them; the project's own options win."""
    bounds = _bounded(Alias("11.4.2-MariaDB"), timeout=5.0)["OPTIONS"]
    assert bounds == {"connect_timeout": 5, "read_timeout": 9, "write_timeout": 6}


@pytest.mark.parametrize("number", [1020, 1205, 1213])
def test_a_step_that_met_another_is_done_again(number: int) -> None:
    """Deadlock, lock wait, a record that changed."""
    assert is_again(OperationalError(number, "..."))


@pytest.mark.parametrize("number", [1040, 1053, 1290, 1927, 1969, 2002, 2003, 2006, 2013])
def test_a_server_that_is_away_is_asked_again_later(number: int) -> None:
    """Its connection is given up."""
    exc = OperationalError(number, "...")
    assert is_away(exc)
    assert isinstance(translated(exc, tables=""), StoreUnavailable)


@pytest.mark.parametrize(
    ("exc", "kind", "remedy"),
    [
        (ProgrammingError(1146, "..."), StoreError, "the tables are missing: MAKE"),
        (OperationalError(1054, "..."), StoreError, "another version"),
        (DataError(1406, "..."), StoreError, "255 characters"),
        (OperationalError(1021, "..."), StoreFull, "make room"),
        (OperationalError(1045, "..."), StoreError, "check user, password, database"),
        (OperationalError(1049, "..."), StoreError, "check user, password, database"),
        (OperationalError(1142, "..."), StoreError, "check user, password, database and rights"),
        (InternalError(1153, "..."), StoreError, "max_allowed_packet"),
        (ProgrammingError(1064, "..."), StoreError, "see the server's log"),
    ],
)
def test_a_mistake_is_named_with_its_remedy(exc: Exception, kind: type[StoreError], remedy: str) -> None:
    """Trying again cannot help."""
    found = translated(exc, tables="MAKE")
    assert type(found) is kind
    assert remedy in str(found)
    assert not is_away(exc)


class MySQLdbError(Exception):
    """An error of mysqlclient, which is not installed here: the same numbers, from its own module."""

    __module__ = "MySQLdb"


def test_errors_of_mysqlclient_have_the_same_meanings() -> None:
    """It is what most Django projects have."""
    assert is_duplicate(MySQLdbError(1062, "..."))
    assert is_away(MySQLdbError(2006, "..."))
    assert is_again(MySQLdbError(1213, "..."))


@pytest.mark.parametrize(
    ("text", "index"),
    [
        ("Duplicate entry '7' for key 'receipt_parcel'", "receipt_parcel"),  # MariaDB
        ("Duplicate entry '7' for key 'receipt.receipt_parcel'", "receipt_parcel"),  # MySQL 8
        ("Duplicate entry 'for key 'x'' for key 'PRIMARY'", "PRIMARY"),
        ("...", ""),
    ],
)
def test_the_index_that_refused_a_row_is_known(text: str, index: str) -> None:
    """Only by its name can another violation be told."""
    assert duplicate_of(IntegrityError(1062, text)) == index
    assert not duplicate_of(IntegrityError(1048, text))


def test_a_row_that_is_there_is_told_from_other_violations() -> None:
    """A missing parent or a NULL is an error."""
    assert is_duplicate(IntegrityError(1062, "..."))
    assert not is_duplicate(IntegrityError(1048, "..."))
    assert not is_duplicate(ValueError(1062))


@pytest.mark.parametrize("scheme", ["mariadb", "mariadb+pymysql", "mysql+pymysql"])
def test_every_spelling_is_the_same_store(scheme: str) -> None:
    """With what bounds its waits, and what the URL says winning."""
    store = open_sql_store(f"{scheme}://me@127.0.0.1:1/none?read_timeout=9")
    link = store._link
    assert link.dialect.name == "mariadb"
    assert str(link._url) == "mariadb+pymysql://me@127.0.0.1:1/none?charset=utf8mb4&read_timeout=9"  # type: ignore[attr-defined]
    assert set(link._arguments()) == {"connect_timeout", "write_timeout"}  # type: ignore[attr-defined]
