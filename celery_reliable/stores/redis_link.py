"""Talk to Redis in as few microseconds as redis-py allows, and in its own words about what went wrong.

A verb takes an idle `Line`, sends, reads and puts it back: no pool lock, no retry wrapper, no decoding. Clusters go through `redis.cluster.RedisCluster`, which follows redirects.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from redis import exceptions as driver

from celery_reliable.errors import ConfigurationError, StoreError, StoreFull, StoreUnavailable
from celery_reliable.settings import mask_secrets
from celery_reliable.stores.redis_line import Line, ReplyError, pack_command

CLUSTER_SHARDS = 64
_T = TypeVar("_T")
_FULL = 0.9  # share of maxmemory from which it is told
_MANY = 20_000_000  # keys: some 3 GB
_SAMPLE = 200  # keys that are looked at
_OF_A_CACHE = re.compile(r"[\w.-]*:\d+:|(flask_cache|laravel_cache|cachalot|dogpile)[:_]")  # the first is Django's
_IDLE = 64  # connections kept open at most; one is enough for each thread or greenlet that runs at a time


class Link(Protocol):
    """How the store reaches its server or servers."""

    shards: int
    epoch: int
    """Grows when a connection was lost: behind the same address may be another server, with another clock."""

    def command(self, *args: Any, key: str) -> Any:
        """Send one command about ``key``; replies are bytes and ints."""
        ...

    def try_command(self, *args: Any, key: str) -> Any:
        """Send one command, on a kept connection if there is one; None when that did not work, for whatever reason."""
        ...

    def begin_command(self, *args: Any, key: str) -> Callable[[], Any]:
        """Send one command about ``key``, and return what takes its reply, to be called once. Raises nothing.

        What cannot be sent by now is sent when the reply is asked for. Who never asks loses the connection.
        """
        ...

    def script(self, verb: str, keys: Sequence[Any], args: Sequence[Any]) -> Any:
        """Run one verb's script."""
        ...

    def begin_script(self, verb: str, keys: Sequence[Any], args: Sequence[Any]) -> Callable[[], Any]:
        """As `begin_command`, with one verb's script."""
        ...

    def scripts(self, verb: str, calls: Sequence[tuple[Sequence[Any], Sequence[Any]]]) -> list[Any]:
        """Run one verb's script for several (keys, args), in their order; where it can be in one round trip.

        When one raises, what the others did is unknown: of verbs that may be repeated only.
        """
        ...

    def wait(self, replicas: int, *, timeout: float, key: str) -> None:
        """Wait until ``replicas`` have the writes of this connection, or raise `StoreUnavailable`."""
        ...

    def findings(self) -> list[str]:
        """Return what is wrong with the server's configuration."""
        ...

    def close(self) -> None:
        """Close every connection."""
        ...


def link_for(url: str, *, scripts: Mapping[str, bytes], timeout: float) -> Link:
    """Choose the link by the URL's scheme: ``redis rediss unix``, ``sentinel``, ``redis+cluster rediss+cluster``."""
    scheme = url.split("://", 1)[0]
    if scheme in ("redis+cluster", "rediss+cluster"):
        return ClusterLink(url.replace("+cluster", "", 1), scripts=scripts, timeout=timeout)
    if scheme == "sentinel":
        return SingleLink(lambda: _sentinel_pool(url, timeout=timeout), scripts=scripts)
    return SingleLink(lambda: _pool(url, timeout=timeout), scripts=scripts)


class SingleLink:
    """One server (or the master that Sentinel names), over connections kept idle between calls.

    Survives a fork: the child opens its own connections. Each link is safe for threads and greenlets, since an idle
    connection is taken out for the time of a call.
    """

    shards = 1

    def __init__(self, make_pool: Callable[[], Any], *, scripts: Mapping[str, bytes]) -> None:
        """Take a function that makes redis-py's pool, called at the first use in each process."""
        self._make_pool = make_pool
        self._scripts = scripts
        self._shas = {verb: hashlib.sha1(body, usedforsecurity=False).hexdigest() for verb, body in scripts.items()}
        self._pool: Any = None
        self._idle: deque[Line] = deque(maxlen=_IDLE)
        self._pid = 0
        self.epoch = 0

    def command(self, *args: Any, key: str) -> Any:
        """See `Link.command`."""
        return _translated(self._call, args)

    def try_command(self, *args: Any, key: str) -> Any:
        """See `Link.try_command`."""
        try:
            return _translated(self._call_once, args)
        except (StoreFull, StoreUnavailable):
            return None

    def begin_command(self, *args: Any, key: str) -> Callable[[], Any]:
        """See `Link.begin_command`."""
        return partial(_translated, self._begin(args))

    def script(self, verb: str, keys: Sequence[Any], args: Sequence[Any]) -> Any:
        """See `Link.script`: EVALSHA, and EVAL once after the server forgot the script."""
        return _translated(self._evaluate, verb, (len(keys), *keys, *args))

    def begin_script(self, verb: str, keys: Sequence[Any], args: Sequence[Any]) -> Callable[[], Any]:
        """See `Link.begin_script`."""
        rest = (len(keys), *keys, *args)
        return partial(_translated, self._evaluate, verb, rest, self._begin(("EVALSHA", self._shas[verb], *rest)))

    def _evaluate(self, verb: str, rest: tuple[Any, ...], begun: Callable[[], Any] | None = None) -> Any:
        try:
            return begun() if begun else self._call(("EVALSHA", self._shas[verb], *rest))
        except ReplyError as exc:
            if not str(exc).startswith("NOSCRIPT"):
                raise
            return self._call(("EVAL", self._scripts[verb], *rest))

    def scripts(self, verb: str, calls: Sequence[tuple[Sequence[Any], Sequence[Any]]]) -> list[Any]:
        """See `Link.scripts`."""
        return _translated(self._evaluate_all, verb, [(len(keys), *keys, *args) for keys, args in calls])

    def _evaluate_all(self, verb: str, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        packed = b"".join(pack_command(("EVALSHA", self._shas[verb], *rest)) for rest in calls)
        replies = self._sent(packed, count=len(calls)) if calls else []
        answers = []
        for rest, reply in zip(calls, replies, strict=True):
            unknown = isinstance(reply, ReplyError) and str(reply).startswith("NOSCRIPT")
            if isinstance(reply, ReplyError) and not unknown:
                self._idle.clear()  # this one may lead to a server that is no master any more
                raise reply
            answers.append(self._evaluate(verb, rest) if unknown else reply)
        return answers

    def _call(self, args: tuple[Any, ...]) -> Any:
        """Call once; a kept connection that the server has closed meanwhile is replaced by a new one, once."""
        return self._sent(pack_command(args))

    def _begin(self, args: tuple[Any, ...]) -> Callable[[], Any]:
        """Send on a kept connection; without one, what is returned opens one and sends."""
        packed = pack_command(args)
        try:
            line = self._idle.pop() if self._pid == os.getpid() else None
        except IndexError:
            line = None
        if line is None:
            return partial(self._sent, packed)
        try:
            line.send(packed)
        except OSError:
            line.close()
            self._lost()
            return partial(self._sent, packed)
        except BaseException:
            line.close()
            raise
        return partial(self._sent, packed, begun=line)

    def _sent(self, packed: bytes, *, count: int = 0, begun: Line | None = None) -> Any:
        """Return the reply; ``begun`` has sent the command already."""
        try:
            return self._sent_once(packed, count=count, begun=begun)
        except TimeoutError:
            raise
        except OSError:
            return self._exchange(self._connection(), packed, count)

    def _call_once(self, args: tuple[Any, ...]) -> Any:
        return self._sent_once(pack_command(args))

    def _sent_once(self, packed: bytes, *, count: int = 0, begun: Line | None = None) -> Any:
        try:
            return self._exchange(begun or self._take(), None if begun else packed, count)
        except OSError:
            self._lost()
            raise

    def _lost(self) -> None:
        """Use no connection like one that was lost: the others are of the same server, which may be another one now."""
        self._idle.clear()
        self.epoch += 1

    def _exchange(self, line: Line, packed: bytes | None, count: int) -> Any:
        """Return the reply, or the list of ``count`` replies to several commands. None packed: one was sent before."""
        try:
            if packed is None:
                reply = line.reply()
            else:
                reply = line.exchange_all(packed, count) if count else line.exchange(packed)
        except ReplyError as exc:
            if _may_follow_a_failover(exc):
                line.close()
            else:
                self._idle.append(line)
            raise
        except BaseException:
            line.close()  # an interrupted exchange leaves a reply behind
            raise
        self._idle.append(line)
        return reply

    def _take(self) -> Line:
        if self._pid != os.getpid():
            self._idle = deque(maxlen=_IDLE)
            self._pool, self._pid = self._make_pool(), os.getpid()
        try:
            return self._idle.pop()
        except IndexError:
            return self._connection()

    def _connection(self) -> Line:
        """Return a new connection. The pool counts those that it has made, not those that are gone, and stops at a hundred."""
        return Line(self._pool.connection_class(**self._pool.connection_kwargs))

    def wait(self, replicas: int, *, timeout: float, key: str) -> None:
        """See `Link.wait`: the connection used last is on top of the idle ones."""
        _need(self.command("WAIT", replicas, int(timeout * 1000), key=key), replicas)

    def findings(self) -> list[str]:
        """See `Link.findings`."""
        return _findings(lambda *args: self.command(*args, key=""))

    def close(self) -> None:
        """See `Link.close`."""
        while self._idle:
            line = self._idle.pop()
            if self._pid == os.getpid():
                line.close()


class ClusterLink:
    """A Redis Cluster: 64 shards, each a hash tag, spread over its nodes."""

    shards = CLUSTER_SHARDS

    def __init__(self, url: str, *, scripts: Mapping[str, bytes], timeout: float) -> None:
        """Take the URL of any node; nothing connects before the first use."""
        self._url, self._scripts, self._timeout = url, scripts, timeout
        self._shas = {verb: hashlib.sha1(body, usedforsecurity=False).hexdigest() for verb, body in scripts.items()}
        self._made: Any = None
        self._pid = 0
        self.epoch = 0

    @property
    def _client(self) -> Any:
        if self._pid != os.getpid():
            from redis.cluster import RedisCluster  # noqa: PLC0415  # the driver is imported where it is used

            options = {"socket_timeout": self._timeout, "socket_connect_timeout": self._timeout, "protocol": 2}
            self._made, self._pid = RedisCluster.from_url(_driver_spelling(self._url), **options), os.getpid()
        return self._made

    def command(self, *args: Any, key: str) -> Any:
        """See `Link.command`. Sent to the node that holds ``key``, raw, so that replies look as they do elsewhere."""
        return _translated(self._call, args, key)

    def try_command(self, *args: Any, key: str) -> Any:
        """See `Link.try_command`."""
        try:
            return self.command(*args, key=key)
        except (StoreFull, StoreUnavailable):
            return None

    def begin_command(self, *args: Any, key: str) -> Callable[[], Any]:
        """See `Link.begin_command`: redis-py's client of a Cluster waits for each reply, so nothing is sent by now."""
        return partial(self.command, *args, key=key)

    def script(self, verb: str, keys: Sequence[Any], args: Sequence[Any]) -> Any:
        """See `Link.script`."""
        return _translated(self._evaluate, verb, (len(keys), *keys, *args), str(keys[0]))

    def begin_script(self, verb: str, keys: Sequence[Any], args: Sequence[Any]) -> Callable[[], Any]:
        """See `Link.begin_script`; as `begin_command`."""
        return partial(self.script, verb, keys, args)

    def scripts(self, verb: str, calls: Sequence[tuple[Sequence[Any], Sequence[Any]]]) -> list[Any]:
        """See `Link.scripts`: each by itself, since they may belong to different nodes."""
        return [self.script(verb, keys, args) for keys, args in calls]

    def _evaluate(self, verb: str, rest: tuple[Any, ...], key: str) -> Any:
        try:
            return self._call(("EVALSHA", self._shas[verb], *rest), key)
        except driver.NoScriptError:
            return self._call(("EVAL", self._scripts[verb], *rest), key)

    def _call(self, args: Sequence[Any], key: str) -> Any:
        options = {"NEVER_DECODE": True}
        if args[0] in ("TIME", "INFO", "CONFIG", "WAIT"):
            node = self._client.get_node_from_key(key) or self._client.get_default_node()
            return self._client.execute_command(*args, target_nodes=node, **options)
        return self._client.execute_command(*args, **options)

    def wait(self, replicas: int, *, timeout: float, key: str) -> None:
        """See `Link.wait`. Of a Cluster's node any connection is asked: more than what is needed, never less."""
        _need(self.command("WAIT", replicas, int(timeout * 1000), key=key), replicas)

    def findings(self) -> list[str]:
        """See `Link.findings`, of every primary."""
        found: list[str] = []
        for node in _translated(self._client.get_primaries):
            found += _findings(partial(_translated, partial(self._client.execute_command, target_nodes=node)))
        return sorted(set(found))

    def close(self) -> None:
        """See `Link.close`."""
        if self._made is not None and self._pid == os.getpid():
            self._made.close()
        self._made, self._pid = None, 0


def _options(timeout: float) -> dict[str, Any]:
    return {"socket_timeout": timeout, "socket_connect_timeout": timeout, "protocol": 2, "decode_responses": False}


def _pool(url: str, *, timeout: float) -> Any:
    from redis import ConnectionPool  # noqa: PLC0415  # the driver is imported where it is used
    from redis.backoff import NoBackoff  # noqa: PLC0415
    from redis.retry import Retry  # noqa: PLC0415

    return ConnectionPool.from_url(_driver_spelling(url), retry=Retry(NoBackoff(), 0), **_options(timeout))


def _driver_spelling(url: str) -> str:
    """Return the URL as redis-py reads it: Celery's documentation writes ``ssl_cert_reqs=CERT_REQUIRED``."""
    return re.sub(r"(ssl_cert_reqs=)CERT_(\w+)", lambda found: found[1] + found[2].lower(), url)


def _sentinel_pool(url: str, *, timeout: float) -> Any:
    """Read ``sentinel://[user:password@]host:port,host:port/master_name[/db][?ssl=true&sentinel_password=...]``."""
    from redis import sentinel as driver  # noqa: PLC0415
    from redis.backoff import NoBackoff  # noqa: PLC0415
    from redis.retry import Retry  # noqa: PLC0415

    parts = urlsplit(url)
    credentials, _, hosts = parts.netloc.rpartition("@")
    user, _, password = credentials.partition(":")
    service, _, database = parts.path.strip("/").partition("/")
    query = dict(parse_qsl(parts.query))
    addresses = [(host, int(port or 26379)) for host, _, port in (item.partition(":") for item in hosts.split(","))]
    if not service or not hosts:
        msg = (
            "reliable_store_url: expected sentinel://host:port,host:port/master_name, found no "
            f"{'hosts' if service else 'master name'}; name the master that the sentinels watch"
        )
        raise ConfigurationError(msg)
    options = _options(timeout)
    secret = query.get("sentinel_password")
    make_sentinel: Any = driver.Sentinel  # its constructor is not typed
    make_pool: Any = driver.SentinelConnectionPool
    sentinels = make_sentinel(addresses, sentinel_kwargs={**options, **({"password": secret} if secret else {})})
    if password:
        options |= {"password": unquote(password), **({"username": unquote(user)} if user else {})}
    ssl = query.get("ssl", "").lower() in ("1", "true", "yes")
    retry = Retry(NoBackoff(), 0)
    return make_pool(service, sentinels, ssl=ssl, db=int(database or 0), retry=retry, **options)


def _translated(call: Callable[..., _T], *args: Any) -> _T:
    """Call, and say driver errors in our words: away, full, or refused."""
    try:
        return call(*args)
    except ReplyError as exc:
        raise _refused(exc) from exc
    except driver.AuthenticationError as exc:
        raise StoreError(_said(exc, "check user and password in reliable_store_url")) from exc
    except (driver.ConnectionError, driver.TimeoutError, driver.ClusterDownError, driver.TryAgainError) as exc:
        raise StoreUnavailable(_said(exc, "the call is tried again")) from exc
    except driver.RedisClusterException as exc:
        raise StoreUnavailable(_said(exc, "the call is tried again")) from exc
    except driver.ResponseError as exc:
        raise _refused(exc) from exc
    except OSError as exc:
        raise StoreUnavailable(_said(exc, "the call is tried again")) from exc


_NOT_LET_IN = ("NOAUTH", "WRONGPASS", "NOPERM")
_AWAY = ("LOADING", "READONLY", "MASTERDOWN", "MISCONF", "NOREPLICAS", "CLUSTERDOWN", "TRYAGAIN", "BUSY")


def _may_follow_a_failover(exc: Exception) -> bool:
    return type(exc).__name__ in ("ReadOnlyError", "MasterDownError") or str(exc).startswith(_AWAY)


def _refused(exc: Exception) -> StoreError:
    text = str(exc)
    if text.startswith(_NOT_LET_IN):
        return StoreError(_said(exc, "check user and password in reliable_store_url"))
    if type(exc).__name__ == "OutOfMemoryError" or "OOM" in text or "maxmemory" in text:
        return StoreFull(_said(exc, "raise maxmemory or drain the backlog; finishing tasks goes on meanwhile"))
    if _may_follow_a_failover(exc):
        return StoreUnavailable(_said(exc, "the call is tried again"))
    return StoreError(_said(exc, "Redis 7 or Valkey 7.2 is needed; see the server's log"))


def _said(exc: Exception, remedy: str) -> str:
    return f"store (reliable_store_url): {type(exc).__name__}: {mask_secrets(str(exc))[:300]}; {remedy}"


def _need(have: Any, replicas: int) -> None:
    if int(have) < replicas:
        msg = f"reliable_wait_replicas: expected {replicas} replicas to confirm, found {have}; is one down?"
        raise StoreUnavailable(msg)


def _findings(ask: Callable[..., Any]) -> list[str]:
    found = []
    policy = _config(ask, "maxmemory-policy")
    if policy not in ("", "noeviction"):
        found.append(
            f"maxmemory-policy is {policy}: Redis may evict done markers and run jobs twice; set it to noeviction"
        )
    version = _info(ask, "server").get("redis_version", "0")
    if int(version.split(".")[0]) < 7:  # noqa: PLR2004  # the version is its own name
        found.append(f"the server is Redis {version}; Redis 7 or Valkey 7.2 is needed")
    if _config(ask, "appendonly") == "no":
        found.append("appendonly is no: a crash of Redis forgets every job since its last snapshot; set it to yes")
    return [*found, *_memory(_info(ask, "memory")), *count_findings(ask), *_neighbours(ask)]


def _memory(info: Mapping[str, str]) -> Iterator[str]:
    used, most = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    if most and used > _FULL * most:
        yield (
            f"{used / most:.0%} of maxmemory ({most / 1e6:,.0f} MB) is used: beyond it apply_async raises StoreFull; raise "
            "maxmemory, or find what grows"
        )


def count_findings(ask: Callable[..., Any]) -> Iterator[str]:
    """Tell of very many keys: those of finished jobs are bounded by their age alone."""
    try:
        keys = int(ask("DBSIZE"))
    except StoreUnavailable:
        raise
    except (StoreError, TypeError):  # a user who may not ask that
        return
    if keys > _MANY:
        yield (
            f"{keys:,} keys lie in the database, where every finished job with a declared key is one until its idempotency_ttl is "
            "over: shorten that of the tasks that run most, or see with `redis-cli --bigkeys` what else is there"
        )


def _neighbours(ask: Callable[..., Any]) -> Iterator[str]:
    """Look at some keys for those that a cache makes."""
    try:
        _, names = ask("SCAN", 0, "COUNT", _SAMPLE)
    except StoreUnavailable:
        raise
    except (StoreError, TypeError, ValueError):  # a service that refuses it, or a Cluster's client that scans by itself
        return
    cached = [_plain(name) for name in names if _OF_A_CACHE.match(_plain(name))]
    if cached:
        yield (
            f"keys of a cache lie beside ours (such as {cached[0][:40]!r}): whoever clears the cache with FLUSHDB forgets every "
            "job; give the store a database of its own, better a server"
        )


def _config(ask: Callable[..., Any], name: str) -> str:
    """Return one configuration value, "" where the server does not tell (managed services refuse CONFIG)."""
    try:
        reply = ask("CONFIG", "GET", name)
    except StoreError as exc:
        if isinstance(exc, StoreUnavailable):
            raise
        return ""
    values = list(reply.values()) if isinstance(reply, dict) else list(reply)[1:]
    return _plain(values[0]) if values else ""


def _info(ask: Callable[..., Any], section: str) -> dict[str, str]:
    reply = ask("INFO", section)
    if isinstance(reply, dict):
        return {str(name): str(value) for name, value in reply.items()}
    lines = (line.split(":", 1) for line in _plain(reply).splitlines() if ":" in line)
    return {name: value.strip() for name, value in lines}


def _plain(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
