"""Hold the ``reliable_*`` settings: every setting is one field, with its default, its rule and its meaning."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, Protocol

from celery_reliable.settings import conflicts, names, rules
from celery_reliable.settings.messages import error, spelled
from celery_reliable.settings.policies import (
    BREAKER_COLUMNS,
    FAIR_COLUMNS,
    KILL_COLUMNS,
    QUEUE_COLUMNS,
    BreakerPolicy,
    FairQueue,
    KillSwitch,
    QueueLimit,
)
from celery_reliable.settings.store_url import SCHEMES, STORE_URL

VISIBILITY_TIMEOUT = 3600.0  # kombu's own default on Redis
PLACEHOLDERS = "%n, %h, %p, %d, %%"  # what Celery puts into the paths of its own files
NODE_PATH = r"(?:[^%]|%[nhpd%])+"
_SHORTEST_WINDOW = 0.1
_BURST = 10  # times debounce


class Configuration(Protocol):
    """What `Settings.from_conf` needs of ``app.conf``, or of a plain dict."""

    def get(self, key: str, default: Any, /) -> Any:
        """Return the value of a setting, or the default."""
        ...

    def keys(self) -> Iterable[str]:
        """Return all names, as they are spelled."""
        ...


@dataclass(frozen=True, slots=True)
class Settings:
    """Hold every ``reliable_*`` setting; a field is named after its setting, without ``reliable_``. Durations in seconds.

    Instances made by `from_conf` and `for_task` are valid, alone and together. ``visibility_timeout`` is no setting of
    ours but the broker's, taken from ``broker_transport_options``. The URLs, which may hold passwords, are not in the
    repr.

    .. versionadded:: 0.1
    """

    store_url: str | None = rules.text(
        None,
        "Where claims, leases and dead letters are kept. Not given: the result backend if it is Redis, else the broker "
        "if it is Redis.",
        expected=f"a URL that begins with one of {SCHEMES}",
        pattern=STORE_URL,
        secret=True,
    )
    key_prefix: str = rules.text(
        "cr:",
        "Begins every key in the store. Projects that share a Redis database need different ones.",
        expected="1 to 32 letters, digits or any of _ . : -",
        pattern=r"[A-Za-z0-9_.:-]{1,32}",
    )
    wait_replicas: int = rules.count(
        0,
        "Replicas that must have a submission or an outcome before it counts (Redis WAIT). 0 trusts the primary.",
        unit="replicas",
    )
    on_store_down: str = rules.choice(
        "A message whose claim cannot be asked for: hold it until the store is back, or give it back to the queue after one to three seconds.",
        "wait",
        "reject",
    )
    ledger: bool = rules.flag(
        default=True,
        meaning="Keep each submission in the store until its end, so that a message the broker lost is published again.",
    )
    relay_rate: int = rules.count(
        200,
        "Submissions that each worker publishes a second, at most, of those that wait in the outbox of a store in a "
        "database. 0: none, a `celery reliable relay` runs.",
        unit="submissions",
    )
    idempotency_ttl: float = rules.seconds(
        604_800.0,
        "How long a finished declared key answers a repeated submission.",
        at_least=1.0,
        per_task=True,
    )
    on_conflict: str = rules.choice(
        "Submission of a declared key that waits, runs or is done: hand out the existing result, raise DuplicateTask, "
        "let the newest arguments win while it has not started, or (queue_one) queue one more behind a running one, whose "
        "newest arguments win, and run again what is done.",
        "return_existing",
        "raise",
        "replace",
        "queue_one",
        per_task=True,
    )
    dedup_for: float | None = rules.seconds(
        None,
        "A declared key answers with the job that it has for so long after that was submitted, and while it is alive; the "
        "next submission is a new job. None: for idempotency_ttl after its end.",
        at_least=_SHORTEST_WINDOW,
        optional=True,
        per_task=True,
    )
    debounce: float | None = rules.seconds(
        None,
        "A submission of a declared key begins so much later; each further one begins that time anew and brings the newest "
        "arguments, so that a burst is one run. None: at once.",
        at_least=_SHORTEST_WINDOW,
        optional=True,
        per_task=True,
    )
    debounce_max: float | None = rules.seconds(
        None,
        "Submissions put a debounced job off for so long at most, counted from the first of a burst. None: ten times debounce.",
        at_least=_SHORTEST_WINDOW,
        optional=True,
        per_task=True,
    )
    retry_on: tuple[Any, ...] = rules.several(
        "Errors that another attempt may cure, before the built-in rules.",
        expected="exception classes or dotted paths",
        member=rules.is_exception,
        per_task=True,
    )
    fail_on: tuple[Any, ...] = rules.several(
        "Errors that no attempt can cure. Of two listed classes the one nearest to the error wins, here on a tie.",
        expected="exception classes or dotted paths",
        member=rules.is_exception,
        per_task=True,
    )
    on_unknown_error: str = rules.choice(
        "Verdict for an error that no rule knows.",
        "fail",
        "retry",
        per_task=True,
    )
    max_retries: int = rules.count(
        5,
        "Attempts after the first one.",
        unit="attempts",
        per_task=True,
    )
    retry_backoff: float = rules.seconds(
        1.0,
        "Base of the delay before a retry: random between 0 and base * 2**n.",
        per_task=True,
    )
    retry_backoff_max: float = rules.seconds(
        600.0,
        "Longest delay drawn before a retry; a server's Retry-After may ask for more.",
        per_task=True,
    )
    retry_for: float | None = rules.seconds(
        None,
        "Total time, from the submission, in which retries may start. None: only max_retries counts.",
        optional=True,
        per_task=True,
    )
    max_deliveries: int = rules.count(
        5,
        "Claims that end without a verdict (killed process, lost host) before the task is a dead letter.",
        at_least=1,
        unit="deliveries",
        per_task=True,
    )
    quarantine_queue: str | None = rules.text(
        None,
        "Queue for a task whose next lost delivery would make it a dead letter, so that it takes no neighbours with it. "
        "A worker of its own has to consume it.",
        expected="the name of a queue, or None",
        pattern=r"\S{1,255}",
    )
    max_snoozes: int = rules.count(
        1000,
        "Snoozes before the task is a dead letter.",
        unit="snoozes",
        per_task=True,
    )
    max_runtime: float = rules.seconds(
        86_400.0,
        "Longest time a lease is renewed for a task that has no time limit.",
        at_least=1.0,
    )
    lease_ttl: float = rules.seconds(
        15.0,
        "How long the right to run outlives its last renewal, so how soon a dead worker's task starts elsewhere. "
        "Renewed every third of it.",
        at_least=rules.MINIMUM_LEASE_TTL,
        per_task=True,
    )
    dead_letter_max: int = rules.count(
        100_000,
        "Dead letters kept; above it the oldest go, counted.",
        at_least=1,
        unit="letters",
    )
    dead_letter_ttl: float = rules.seconds(
        2_592_000.0,
        "How long a dead letter can be replayed.",
        at_least=1.0,
    )
    overlap: str = rules.choice(
        "A job whose predecessor still runs: run both, skip it, let one wait, or ask the running one to stop.",
        "allow",
        "forbid",
        "queue",
        "replace",
        per_task=True,
    )
    overlap_lock: str = rules.choice(
        "What tells that a job which must not overlap has lost its process: the end of its lease, or (postgres-advisory) at "
        "once, an advisory lock that the PostgreSQL of reliable_store_url frees with the process's connection.",
        "lease",
        "postgres-advisory",
    )
    breaker: str | None = rules.text(
        None,
        "Dependency that a task calls. While it fails, the whole fleet's tasks of this name wait, unrun and with no attempt "
        "spent.",
        expected="a name of 1 to 100 characters without blanks, or None",
        pattern=r"\S{1,100}",
        per_task=True,
    )
    breakers: Mapping[str, BreakerPolicy] | None = rules.table(
        "When the breaker of a dependency opens, where 5 failures in a row, or half of the calls of a minute, are not right: "
        "failures, ratio, window, open_for, probes.",
        of="breaker",
        row=BreakerPolicy,
        columns=BREAKER_COLUMNS,
    )
    concurrency_limit: int | None = rules.count(
        None,
        "Runs at the same time, in the whole fleet, for each concurrency_key. Others wait, unrun and with no attempt spent.",
        unit="runs",
        at_least=1,
        at_most=1000,
        per_task=True,
    )
    fleet_rate_limit: str | None = rules.text(
        None,
        "Runs that begin in a time, in the whole fleet, for each concurrency_key, evenly spread. Celery's rate_limit counts "
        "in each worker for itself.",
        expected="a rate such as 10/s, 100/m or 1000/h, or None",
        pattern=r"[1-9]\d{0,5}/[smh]",
        per_task=True,
    )
    retry_budget: float | None = rules.share(
        None,
        "Retries that run, as a share of the first attempts of the last minute, for each breaker, or task without one, in the "
        "whole fleet; ten a minute always may. Those beyond it are postponed. 0.2 is a good one.",
        per_task=True,
    )
    queue_limits: Mapping[str, QueueLimit] | None = rules.table(
        "How much may wait in a queue before submissions are refused, held up or shed: depth (messages), age (seconds of the "
        "oldest), mode, wait.",
        of="queue",
        row=QueueLimit,
        columns=QUEUE_COLUMNS,
        needed=("depth", "age"),
    )
    fair_queues: Mapping[str, FairQueue] | None = rules.table(
        "Queues in which nobody is starved by who floods them: a task with a fairness_key goes into one of the queue's lanes, and "
        "workers take turns over them: lanes (16, shared by a hash), weights (lanes of its own for a key).",
        of="queue",
        row=FairQueue,
        columns=FAIR_COLUMNS,
    )
    kill_switches: Mapping[str, KillSwitch] | None = rules.table(
        "Queues that the whole fleet stops consuming for a while when too many of their runs fail; other queues go on: "
        "failure_ratio (0.5), window (60), minimum (20 runs), pause (60).",
        of="queue",
        row=KillSwitch,
        columns=KILL_COLUMNS,
    )
    low_priority_every: int | None = rules.count(
        None,
        "Each so-manieth message that a worker takes on Redis is looked for in lower priorities first, so that none waits for "
        "ever below a stream of higher ones. 10 is a good one.",
        unit="messages",
        at_least=2,
        at_most=1000,
    )
    importance: str = rules.choice(
        "What is shed first when a queue with the mode 'shed' is full: best_effort calls.",
        "normal",
        "best_effort",
        per_task=True,
    )
    claim_check_threshold: int = rules.count(
        131_072,
        "Largest arguments, checkpoint, step or result kept in message, store and result backend. What is larger goes to "
        "reliable_blob_url; "
        "without one arguments stay in the message, a checkpoint or step is refused, and a result is kept with the event "
        "result_oversized.",
        at_least=1,
        unit="bytes",
        per_task=True,
    )
    blob_url: str | None = rules.text(
        None,
        "Folder for what is larger than reliable_claim_check_threshold: an fsspec URL or an absolute path that all workers, "
        "producers and processes that ask for results reach. Needs the extra claim-check.",
        expected="an fsspec URL, an absolute path, or None",
        pattern=r"([a-z][a-z0-9+.:-]*://|/).+",
        secret=True,
    )
    blob_cipher: Any = rules.plug(  # noqa: RUF009  # makes a field
        "Encrypts what goes below reliable_blob_url, such as a MultiFernet of the cryptography package.",
        expected="an object with encrypt(bytes) and decrypt(bytes)",
        accepts=lambda value: callable(getattr(value, "encrypt", None)) and callable(getattr(value, "decrypt", None)),
    )
    drain_timeout: float = rules.seconds(
        30.0,
        "How long a worker that was told to stop lets its tasks run before it interrupts them.",
    )
    heartbeat_file: str | None = rules.text(
        None,
        "File that a worker rewrites while there is evidence that it works, for probes. %n is the node's name, %h its "
        "host, %p both; workers of one host need different files.",
        expected=f"a path, in which every % begins one of {PLACEHOLDERS}, or None",
        pattern=NODE_PATH,
    )
    heartbeat_interval: float = rules.seconds(
        5.0,
        "How often a worker looks whether it works, and rewrites its heartbeat file.",
        at_least=1.0,
    )
    healthz_socket: str | None = rules.text(
        None,
        "Unix socket that answers HTTP probes: /livez and /readyz. The same placeholders as in heartbeat_file.",
        expected=f"a path, in which every % begins one of {PLACEHOLDERS}, or None",
        pattern=NODE_PATH,
    )
    healthz_port: int = rules.count(
        0,
        "TCP port that answers HTTP probes: /livez and /readyz. 0: none.",
        at_most=65_535,
        unit="",
    )
    healthz_host: str = rules.text(
        "127.0.0.1",
        "Address that healthz_port listens on. A kubelet asks the address of the pod: 0.0.0.0.",
        expected="an IPv4 address or a host name",
        pattern=r"[A-Za-z0-9_.-]+",
    )
    metrics_port: int = rules.count(
        0,
        "TCP port on which each worker and beat answers Prometheus: /metrics. 0: none. Processes of one host need different ones.",
        at_most=65_535,
        unit="",
    )
    metrics_host: str = rules.text(
        "127.0.0.1",
        "Address that metrics_port listens on. A Prometheus elsewhere needs 0.0.0.0.",
        expected="an IPv4 address or a host name",
        pattern=r"[A-Za-z0-9_.-]+",
    )
    park_ttl: float = rules.seconds(
        86_400.0,
        "How long a message that no worker can run yet is parked before it is a dead letter.",
        at_least=1.0,
    )
    release: str | None = rules.text(
        None,
        "Release of the project's own code, kept with each dead letter.",
        expected="1 to 64 characters without spaces, or None",
        pattern=r"\S{1,64}",
    )
    signing_keys: Any = rules.secrets(  # noqa: RUF009  # makes a field
        "Secrets that producers, workers and beats share. The first one signs each message; a message that none of them has "
        "signed is not run. None: messages are not signed."
    )
    signing: str = rules.choice(
        "What a worker does with a message that no key has signed: keep it as a dead letter, or tell of it and run it, while "
        "signing is introduced.",
        "enforce",
        "warn",
    )
    letter_url: str | None = rules.text(
        None,
        "Where people look at a dead letter, such as a page of Django's admin: alerts, Sentry and the command line link to it.",
        expected="an http(s) address with {letter_id} in it, or None",
        pattern=r"https?://\S*\{letter_id\}\S*",
    )
    redact: Any = rules.plug(  # noqa: RUF009  # makes a field
        "Called as redact(task_name, args, kwargs) before arguments of dead letters are shown; returns what may be seen.",
        expected="a function",
        accepts=callable,
    )
    explain_share: float = rules.share(
        1.0,
        "Share of the jobs of which is noted what was unusual in their life, for `celery reliable explain`. 0: of none.",
    )
    explain_size: int = rules.count(
        1024,
        "Most that is noted of one job; what is older goes. At most 65 536 jobs are kept in mind, the newest ones.",
        at_least=256,
        at_most=65_536,
        unit="bytes",
    )
    event_hooks: tuple[Any, ...] = rules.several(
        "Called as hook(name, fields) for every event.",
        expected="functions or dotted paths",
        member=rules.is_hook,
    )
    alerts: tuple[Any, ...] = rules.several(
        "Called as send(alert) for what needs a person: dead letters, stuck workers, unconsumed queues, beat in trouble. "
        "`celery_reliable.alerts:to_log` writes them to the log.",
        expected="functions or dotted paths",
        member=rules.is_hook,
    )
    alerts_every: float = rules.seconds(
        300.0,
        "Least time between two alerts about the same thing, in the whole fleet.",
        at_least=1.0,
    )
    beat_scheduler: str = rules.text(
        "celery.beat:PersistentScheduler",
        "The scheduler that the reliable one wraps.",
        expected="a dotted path",
        pattern=r"[\w.]+:?[\w.]+",
    )
    leader_ttl: float = rules.seconds(
        15.0,
        "How long a beat that died keeps another one from leading.",
        at_least=rules.MINIMUM_LEASE_TTL,
    )
    catch_up: str = rules.choice(
        "Slots that passed while no beat ran: run the latest, none, or all.",
        "latest",
        "skip",
        "all",
        per_task=True,
    )
    catch_up_window: float = rules.seconds(
        86_400.0,
        "How far back missed slots are looked at.",
        per_task=True,
    )
    start_deadline: float | None = rules.seconds(
        None,
        "A slot that could not start this long after its due time is dropped. None: no limit.",
        optional=True,
        per_task=True,
    )
    visibility_timeout: float = VISIBILITY_TIMEOUT

    @classmethod
    def from_conf(cls, conf: Configuration) -> Settings:
        """Read ``app.conf`` or a dict. Raises ConfigurationError that lists every problem, one a line."""
        title = "celery_reliable is not configured correctly"
        namespace = names.namespace_of(conf)
        labels = {name: spelled(names.PREFIX + name, namespace) for name in RULES}
        given = {name: value for name in RULES if (value := conf.get(names.PREFIX + name, MISSING)) is not MISSING}
        unknown = names.unknown_settings(conf, known=tuple(RULES), namespace=namespace)
        base = cls(visibility_timeout=_visibility_timeout(conf))
        return base._with(given, unknown=unknown, title=title, labels=labels)

    def for_task(self, task: str, /, **given: Any) -> Settings:
        """Return the settings of one task: ``given`` are its own options, which win. Errors name the task."""
        title = f"task {task!r} is not configured correctly"
        unknown = names.unknown_options(given, known=tuple(RULES), per_task=PER_TASK)
        made = self._with(given, unknown=unknown, title=title, labels={name: name for name in RULES})
        return made if made.debounce is None else replace(made, on_conflict="queue_one")

    def retry_window(self) -> float:
        """Return the longest time in which retries may start, in seconds, Retry-After apart."""
        return self.max_retries * self.retry_backoff_max if self.retry_for is None else self.retry_for

    @property
    def longest_debounce(self) -> float:
        """Return for how long submissions may put a debounced job off, in seconds; 0 when nothing is debounced."""
        return _BURST * (self.debounce or 0.0) if self.debounce_max is None else self.debounce_max

    def letter_link(self, letter_id: str) -> str:
        """Return the address of a dead letter's page; "" where there is none."""
        return (self.letter_url or "").replace("{letter_id}", letter_id)

    @property
    def is_gated(self) -> bool:
        """Whether a run has to ask more than its claim before it begins."""
        limited = not (self.concurrency_limit is None and self.fleet_rate_limit is None)
        return limited or not (self.breaker is None and self.retry_budget is None)

    def _with(self, given: Mapping[str, Any], *, unknown: list[str], title: str, labels: Mapping[str, str]) -> Settings:
        problems = [*unknown, *_wrong_values(given, labels=labels)]
        if problems:
            raise error(title, problems)
        settings = replace(self, **{name: RULES[name].convert(value) for name, value in given.items()})
        problems = conflicts.between(settings, labels=labels)
        if problems:
            raise error(title, problems)
        return settings


DEFAULTS: Mapping[str, Any] = {item.name: item.default for item in fields(Settings) if "rule" in item.metadata}
RULES: Mapping[str, rules.Rule] = {name: Settings.__dataclass_fields__[name].metadata["rule"] for name in DEFAULTS}
PER_TASK = tuple(name for name, rule in RULES.items() if rule.per_task)


def _wrong_values(given: Mapping[str, Any], *, labels: Mapping[str, str]) -> list[str]:
    known = {name: value for name, value in given.items() if name in RULES}
    found = {name: RULES[name].complaint(value, default=DEFAULTS[name]) for name, value in known.items()}
    return [f"{labels[name]}: {complaint}" for name, complaint in found.items() if complaint]


def _visibility_timeout(conf: Configuration) -> float:
    """Read the broker's option. A wrong one is kombu's to complain about."""
    options = conf.get("broker_transport_options", None) or {}
    given = options.get("visibility_timeout", VISIBILITY_TIMEOUT)
    return float(given) if rules.is_number(given, at_least=0.0) else VISIBILITY_TIMEOUT
