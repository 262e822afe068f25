"""Stand in for a Docker client: what would be a container is a process of this machine.

Offers what pytest-docker-tools and pytest-celery (1.3) ask of `docker.DockerClient`, and nothing else. Redis, Valkey and
RabbitMQ images are private servers; any other image is a Python program, run by this interpreter: a worker's image is
built of what is installed here already.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

from docker.errors import NotFound

from celery_reliable.testing.processes import reap_after_us, send
from celery_reliable.testing.running import Running
from celery_reliable.testing.servers import Server, start_rabbitmq, start_redis
from celery_reliable.testing.servers.ports import LOOPBACK
from celery_reliable.testing.servers.process import private_directory

__all__ = ["LocalDocker"]

_EXTRACTING: Final[Mapping[str, Any]] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
"""Before Python 3.10.12 and 3.11.4 there is no filter."""

PYTHON: Final = ("python", "python3")
LISTENING: Final = "0: 00000000:{port:04X} 00000000:0000 0A"  # a row of /proc/net/tcp
STOP_TIMEOUT: Final = 10.0
Output = tuple[int, bytes]


class Engine(Protocol):
    """What runs instead of a container."""

    @property
    def running(self) -> bool:
        """Tell whether it lives."""
        ...

    def output(self) -> str:
        """Return what it has printed."""
        ...

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the first process; SIGKILL takes all others along, as in a container."""
        ...

    def restart(self) -> None:
        """End it if it runs, and start it again."""
        ...

    def remove(self) -> None:
        """End it, and delete its files."""
        ...

    def execute(self, words: Sequence[str]) -> Output:
        """Run another program beside it; return exit code and output."""
        ...


class ServerEngine:
    """A private server."""

    def __init__(self, server: Server) -> None:
        """Take a server that runs."""
        self._server = server

    @property
    def running(self) -> bool:
        """See `Engine.running`."""
        return self._server.running

    def output(self) -> str:
        """See `Engine.output`. RabbitMQ writes a part into files of its own."""
        files = [self._server.log, *sorted(self._server.directory.glob("logs/*.log"))]
        return "".join(file.read_text(errors="replace") for file in files)

    def signal(self, number: signal.Signals) -> None:
        """See `Engine.signal`."""
        if number == signal.SIGKILL:
            self._server.kill()
        else:
            send(self._server.pid, number)

    def restart(self) -> None:
        """See `Engine.restart`."""
        self._server.restart()

    def remove(self) -> None:
        """See `Engine.remove`."""
        self._server.close()

    def execute(self, words: Sequence[str]) -> Output:
        """Refuse: none of its image's programs need be here."""
        return 127, f"{self._server.name} is a process of this machine, which runs no {words[0]}".encode()


class ProgramEngine:
    """A Python program with its volumes."""

    def __init__(self, words: Sequence[str], *, environment: Mapping[str, str], directory: Path) -> None:
        """Start it in a directory."""
        self._words, self._environment, self._directory = words, environment, directory
        self._log = private_directory("container") / "log"
        self._started = self._start()

    def _start(self) -> Running:
        with self._log.open("ab") as output:
            process = subprocess.Popen(
                self._words,
                env=self._environment,
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._reaper = reap_after_us(process.pid, directory=self._log.parent)
        return Running(process, name=self._words[-1], log=self._log)

    @property
    def running(self) -> bool:
        """See `Engine.running`."""
        return self._started.running

    def output(self) -> str:
        """See `Engine.output`."""
        return self._started.logs()

    def signal(self, number: signal.Signals) -> None:
        """See `Engine.signal`."""
        if number == signal.SIGKILL:
            self._started.kill9()
        else:
            self._started.process.send_signal(number)

    def restart(self) -> None:
        """See `Engine.restart`."""
        self._end()
        self._started = self._start()

    def remove(self) -> None:
        """See `Engine.remove`."""
        self._end()
        shutil.rmtree(self._log.parent, ignore_errors=True)

    def _end(self) -> None:
        try:
            self._started.stop(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._started.kill9()
        self._reaper.kill()
        self._reaper.communicate()

    def execute(self, words: Sequence[str]) -> Output:
        """See `Engine.execute`: Python is this one."""
        command = [sys.executable if words[0] in PYTHON else words[0], *words[1:]]
        pipe: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        done = subprocess.run(command, env=self._environment, cwd=self._directory, check=False, **pipe)
        return done.returncode, done.stdout


class LocalContainer:
    """What a test does with a container."""

    def __init__(self, engine: Engine, *, identity: str, ports: Mapping[str, int], options: Mapping[str, Any]) -> None:
        """Take what runs, and say where it listens: ``{"6379/tcp": 15001}``."""
        self._engine, self._ports = engine, ports
        self.id, self.name = identity, f"local-{identity[:12]}"
        self.labels = dict(options.get("labels") or {})
        self.attrs = {
            "Config": {
                # A client that connects to "hostname" finds the port, too.
                "Hostname": next((f"{LOOPBACK}:{port}" for port in ports.values()), identity[:12]),
                "Env": [f"{name}={value}" for name, value in (options.get("environment") or {}).items()],
                "Labels": self.labels,
            },
            "NetworkSettings": {
                "Networks": {options.get("network") or "host": {"IPAddress": LOOPBACK}},
                "Ports": {name: [{"HostPort": str(port)}] for name, port in ports.items()},
            },
            "HostConfig": {"PortBindings": {}},
            "Mounts": [],
        }

    @property
    def status(self) -> str:
        """Say ``running`` or ``exited``."""
        return "running" if self._engine.running else "exited"

    def reload(self) -> None:
        """Do nothing: what this object says is so now."""

    def logs(self) -> bytes:
        """Return everything that was printed."""
        return self._engine.output().encode()

    def kill(self, signal_: str | int | None = None) -> None:
        """Send a signal, by default SIGKILL."""
        self._engine.signal(_signal(signal_))

    def restart(self, timeout: float = STOP_TIMEOUT) -> None:
        """Stop and start."""
        self._engine.restart()

    def remove(self, *, force: bool = False) -> bool:
        """End it for good."""
        self._engine.remove()
        return True

    def wait(self, timeout: float | None = None) -> dict[str, int]:
        """Return at once: `remove` waits."""
        return {"StatusCode": 0}

    def exec_run(self, command: str | Sequence[str], **_: Any) -> Output:
        """Run a program beside it."""
        words = shlex.split(command) if isinstance(command, str) else list(command)
        if words[:2] == ["cat", "/proc/net/tcp"]:  # how pytest-docker-tools looks for open ports
            return 0, "\n".join(LISTENING.format(port=int(name.partition("/")[0])) for name in self._ports).encode()
        return self._engine.execute(words)


def _signal(name: str | int | None) -> signal.Signals:
    if name is None:
        return signal.SIGKILL
    return signal.Signals[f"SIG{name.removeprefix('SIG')}"] if isinstance(name, str) else signal.Signals(name)


# --- the parts of a client


@dataclass(frozen=True, slots=True)
class LocalVolume:
    """A directory."""

    name: str
    path: Path
    attrs: dict[str, Any]

    def remove(self, *_: Any, **__: Any) -> None:
        """Delete it."""
        shutil.rmtree(self.path, ignore_errors=True)


class Volumes:
    """`DockerClient.volumes`."""

    def __init__(self) -> None:
        """Begin with none."""
        self.made: dict[str, LocalVolume] = {}

    def create(self, name: str, **options: Any) -> LocalVolume:
        """Make a directory."""
        self.made[name] = LocalVolume(name, private_directory("volume"), {"Labels": options.get("labels")})
        return self.made[name]

    def get(self, name: str) -> LocalVolume:
        """Find one by name."""
        if name not in self.made:
            raise NotFound(name)
        return self.made[name]


@dataclass(frozen=True, slots=True)
class LocalNetwork:
    """Nothing: all are on this machine."""

    name: str
    attrs: dict[str, Any] = field(default_factory=lambda: {"Labels": {}})

    def remove(self) -> None:
        """Do nothing."""


class Networks:
    """`DockerClient.networks`."""

    def create(self, name: str, **_: Any) -> LocalNetwork:
        """Give a network its name."""
        return LocalNetwork(name)

    def get(self, name: str) -> LocalNetwork:
        """Find none."""
        raise NotFound(name)


@dataclass(frozen=True, slots=True)
class LocalImage:
    """The name of what would be built or pulled."""

    id: str


class Images:
    """`DockerClient.images`: nothing is built or pulled."""

    def build(self, *, tag: str = "scratch", **_: Any) -> tuple[LocalImage, list[Any]]:
        """Return a name, and no output."""
        return LocalImage(tag), []

    def pull(self, repository: str, **_: Any) -> LocalImage:
        """Return a name."""
        return LocalImage(repository)

    def get(self, name: str) -> LocalImage:
        """Return a name."""
        return LocalImage(name)


class Filler:
    """The container that pytest-docker-tools makes to fill a volume."""

    def __init__(self, paths: Mapping[str, Path]) -> None:
        """Take the volumes by where they would be mounted."""
        self._paths = paths

    def put_archive(self, path: str, archive: BinaryIO) -> None:
        """Unpack into a volume."""
        with tarfile.open(fileobj=archive, mode="r:gz") as files:
            files.extractall(self._paths[path], **_EXTRACTING)  # noqa: S202  # the suite packed it itself

    def remove(self, *, force: bool = False) -> None:
        """Do nothing."""


class Containers:
    """`DockerClient.containers`."""

    def __init__(self, volumes: Volumes) -> None:
        """Begin with none."""
        self._volumes = volumes
        self._started: list[LocalContainer] = []

    def run(self, image: str, command: Any = None, **options: Any) -> LocalContainer:
        """Start a process in place of a container."""
        identity = uuid.uuid4().hex * 2
        name = str(image).rpartition("/")[2].partition(":")[0]
        words = shlex.split(command) if isinstance(command, str) else list(command or ())
        server = _server(name, words)
        if server is not None:
            ports = dict.fromkeys(options.get("ports") or (), server.port)
            container = LocalContainer(ServerEngine(server), identity=identity, ports=ports, options=options)
        else:
            engine = self._program(image, words, options, host=identity[:12])
            container = LocalContainer(engine, identity=identity, ports={}, options=options)
        self._started.append(container)
        return container

    def create(self, image: str, *, volumes: Mapping[str, Mapping[str, str]]) -> Filler:
        """Make what fills a volume."""
        return Filler(self._mounts(volumes))

    def get(self, name: str) -> LocalContainer:
        """Find none: nothing is kept from one run to the next."""
        raise NotFound(name)

    def remove_all(self) -> None:
        """End what a test has left."""
        for container in self._started:
            container.remove()

    def _program(self, image: str, words: Sequence[str], options: Mapping[str, Any], *, host: str) -> ProgramEngine:
        if not words:
            msg = f"no process can stand for the image {image}: expected redis, valkey, rabbitmq, or an explicit command; run it where a Docker daemon is"
            raise NotFound(msg)
        mounts = self._mounts(options.get("volumes") or {})
        environment = {**os.environ, **{k: _here(v, mounts) for k, v in (options.get("environment") or {}).items()}}
        directory = next(iter(mounts.values()), Path.cwd())
        paths = (environment.get("PYTHONPATH"), *(folder or str(Path.cwd()) for folder in sys.path))
        environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        command = [_here(word.replace("%h", host), mounts) for word in words]
        return ProgramEngine([*_python(command)], environment=environment, directory=directory)

    def _mounts(self, volumes: Mapping[str, Mapping[str, str]]) -> dict[str, Path]:
        return {mount["bind"]: self._volumes.get(name).path for name, mount in volumes.items()}


def _server(name: str, words: Sequence[str]) -> Server | None:
    if name in ("redis", "valkey"):
        return start_redis(config=dict(_directives(words)))
    return start_rabbitmq() if name == "rabbitmq" else None


def _directives(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Read ``redis-server --save "" --appendonly no``."""
    return zip((word.removeprefix("--") for word in words[1::2]), words[2::2], strict=True)


def _python(words: Sequence[str]) -> Iterable[str]:
    """Have this interpreter run what an image would."""
    return (sys.executable, *words[1:]) if words[0] in PYTHON else (sys.executable, "-m", *words)


def _here(text: str, mounts: Mapping[str, Path]) -> str:
    """Replace the path at which a volume would be mounted by where it is."""
    for bind, path in mounts.items():
        if text == bind or text.startswith(f"{bind}/"):
            return f"{path}{text[len(bind) :]}"
    return text


class LocalDocker:
    """`docker.DockerClient`, of this machine's processes. A context manager: nothing is left at its end."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.volumes, self.networks, self.images = Volumes(), Networks(), Images()
        self.containers = Containers(self.volumes)

    def close(self) -> None:
        """End every process, delete every directory."""
        self.containers.remove_all()
        for volume in self.volumes.made.values():
            volume.remove()


@contextmanager
def local_docker() -> Iterator[LocalDocker]:
    """Give a client for a block of code."""
    client = LocalDocker()
    try:
        yield client
    finally:
        client.close()
