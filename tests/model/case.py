"""What a scenario is made of: which rules of the contract are followed, and how much may go wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

Ledger = Literal["off", "to the claim", "to the end"]
Broker = Literal["redis", "amqp"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The contract, rule by rule. By default none that PROTOCOL.md adds is followed: the first draft."""

    ledger: Ledger = "to the claim"
    """How long the envelope of a submission is kept for the sweep."""
    waits_for_due: bool = False
    """P6: a claim before the backoff has elapsed is answered `NotYet`."""
    generations: bool = False
    """An older copy than the newest that claimed is acked. Needless once `waits_in_worker` holds."""
    existing_heals: bool = False
    """P2: the same id, or a key that nobody has claimed yet, is published again."""
    canvas_is_published: bool = False
    """P4: a duplicate that carries a continuation is published all the same."""
    dead_stays_dead: bool = False
    """P7: a dead key runs again by a new submission or a replay only."""
    stale_gives_back: bool = False
    """P11: a holder that is told `Stale` gives the message back; else it acks."""
    missing_is_stale: bool = True
    """P9: complete on a missing record is `Stale`."""
    higher_fence_wins: bool = False
    """P9: a fence above the record's proves lost writes, and is accepted."""
    revoke_leaves_tombstone: bool = False
    """P18: a revoked key keeps its record, a running holder its claim."""
    gives_back_explicitly: bool = False
    """P12: "not acked" is a give-back."""
    entry_lasts_to_report: bool = False
    """P1: the entry of a submission with a continuation goes after the continuation was sent."""
    refused_continuation_gives_back: bool = False
    """P13: a continuation that cannot be published gives the message back."""
    complete_keeps_trying: bool = False
    """P20: complete is tried for as long as the process lives."""
    refused_publish_withdraws: bool = False
    """P3: a publish that raises withdraws the submission."""
    replay_writes_entry: bool = False
    """P21: a replay has a ledger entry whatever the setting."""
    marker_outlives_copies: bool = False
    """P8: no marker expires while a copy of its message lives."""
    sweep_settles_revoked: bool = False
    """P18: the sweep ends a revoked running job whose holder is gone."""
    late_is_not_run: bool = False
    """P8: a message without a record that is older than the marker's life is not run."""
    drain_keeps_lease: bool = False
    """P16: the lease is kept until the body is gone."""
    children_die_with_parent: bool = False
    """P17: a pool child does not outlive its parent."""
    waits_in_worker: bool = False
    """P10: `Busy` and `NotYet` wait in the worker; else a delayed copy is published."""
    grace: bool = False
    """P19: after an outage nothing expires for one more lease."""
    revoked_is_not_joined: bool = False
    """P5: a submission that meets a job marked revoked starts a life of its own."""
    lives: bool = False
    """P7: a message of an ended life is over."""
    tokens: bool = False
    """P9: complete compares the claim's token as well."""


class Faults(NamedTuple):
    """How often each thing may still go wrong. Part of the state: each fault that happens is one less."""

    crashes: int = 0
    """SIGKILL of a worker."""
    freezes: int = 0
    """SIGSTOP long enough for lease and visibility to end."""
    steals: int = 0
    """A sweep restores a message that its live holder still has: a skewed clock, a shorter timeout."""
    producer_crashes: int = 0
    """A producer dies between submit and publish."""
    refused_publishes: int = 0
    store_outages: int = 0
    """`complete` cannot reach the store until the lease has ended."""
    transients: int = 0
    permanents: int = 0
    revokes: int = 0
    expired_markers: int = 0
    lost_writes: int = 0
    """A fail-over of the store forgets the last write."""
    replays: int = 0
    drains: int = 0
    """The drain timeout meets a body that cannot be interrupted at once."""
    orphans: int = 0
    """The worker's parent is killed, its pool child goes on."""
    outages: int = 0
    """Store and broker are away for longer than lease and visibility, their holders alive."""

    def less(self, name: str) -> Faults:
        """Return what may go wrong after one of these did."""
        return self._replace(**{name: getattr(self, name) - 1})


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A scenario: the rules, the faults, and who takes part."""

    rules: Rules = Rules()
    faults: Faults = Faults()  # noqa: RUF009  # a tuple
    submissions: int = 1
    """Of one key, under ids 1, 2, ...; the second follows the first."""
    workers: int = 2
    same_id: bool = False
    """The second submission repeats the id of the first, as a parent that runs again sends its child again."""
    broker: Broker = "redis"
    first_continues: bool = False
    """The first submission carries a continuation."""
    second_continues: bool = False
    revokes_are_forgotten: bool = False
    """A worker that starts again knows of no revokes."""
    most_retries: int = 1
    most_messages: int = 0
    """So many may be on their way at once; 0: not checked."""
    tolerated: tuple[str, ...] = ()
    """What may happen all the same."""

    def continues(self, task_id: int) -> bool:
        """Tell whether a submission carries a link, a chain or a chord."""
        return (task_id == 1 and self.first_continues) or (task_id == 2 and self.second_continues)

    def task_id(self, submission: int) -> int:
        """Return the id of a submission, counted from 0."""
        return 1 if self.same_id else submission + 1
