"""The scenarios: small ones with and without the rules that repair them, and larger ones in which every rule is followed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tests.model.case import Case, Faults, Rules

EVERY_RULE: Final = Rules(
    ledger="to the end",
    waits_for_due=True,
    existing_heals=True,
    canvas_is_published=True,
    dead_stays_dead=True,
    stale_gives_back=True,
    revoke_leaves_tombstone=True,
    gives_back_explicitly=True,
    entry_lasts_to_report=True,
    refused_continuation_gives_back=True,
    complete_keeps_trying=True,
    refused_publish_withdraws=True,
    replay_writes_entry=True,
    marker_outlives_copies=True,
    sweep_settles_revoked=True,
    late_is_not_run=True,
    drain_keeps_lease=True,
    children_die_with_parent=True,
    waits_in_worker=True,
    grace=True,
    revoked_is_not_joined=True,
    lives=True,
    tokens=True,
)
NO_LEDGER: Final = replace(EVERY_RULE, ledger="off")  # as on RabbitMQ

LOSES_WRITES: Final = ("two executions at once", "two outcomes committed")


@dataclass(frozen=True, slots=True)
class Repair:
    """A scenario in which the contract breaks until some rules are added."""

    name: str
    without: Case
    added: Mapping[str, Any] = field(default_factory=dict)

    def until(self, **rules: Any) -> Repair:
        """Return it with the rules that repair it."""
        return replace(self, added=rules)

    def lacking(self, rule: str) -> Case:
        """Return the repaired scenario without one of its rules."""
        rules = replace(self.repaired.rules, **{rule: getattr(self.without.rules, rule)})
        return replace(self.repaired, rules=rules)

    @property
    def repaired(self) -> Case:
        """The scenario with the rules."""
        return replace(self.without, rules=replace(self.without.rules, **self.added))


def broken(name: str, faults: Faults, **case: Any) -> Repair:
    """Describe a scenario by what goes wrong in it, and by the rules that the draft followed already."""
    return Repair(name, Case(faults=faults, **case))


def whole(faults: Faults, *, rules: Rules = EVERY_RULE, **case: Any) -> Case:
    """Describe a scenario in which every rule is followed; its first submission carries a continuation."""
    return Case(rules=rules, faults=faults, first_continues=True, **case)


SMALL: Final[tuple[Repair, ...]] = (
    broken("pop window after first claim", Faults(crashes=2)).until(ledger="to the end"),
    broken("pop window retry", Faults(crashes=1, transients=1), rules=Rules(waits_for_due=True)).until(
        ledger="to the end"
    ),
    broken("stale holder acks", Faults(crashes=1, freezes=1)).until(ledger="to the end", stale_gives_back=True),
    broken("stale holder acks 2", Faults(crashes=1, freezes=1), rules=Rules(ledger="to the end")).until(
        stale_gives_back=True
    ),
    broken(
        "orphan key ledger off", Faults(producer_crashes=1), submissions=2, broker="amqp", rules=Rules(ledger="off")
    ).until(existing_heals=True),
    broken(
        "orphan key publish refused",
        Faults(refused_publishes=1),
        submissions=2,
        broker="amqp",
        rules=Rules(ledger="off", refused_continuation_gives_back=True),
    ).until(refused_publish_withdraws=True, existing_heals=True),
    broken(
        "resent child never published",
        Faults(producer_crashes=1),
        submissions=2,
        same_id=True,
        broker="amqp",
        rules=Rules(ledger="off"),
    ).until(existing_heals=True),
    broken(
        "resent child reborn",
        Faults(permanents=2),
        submissions=2,
        same_id=True,
        broker="amqp",
        rules=Rules(ledger="off", dead_stays_dead=True),
    ).until(existing_heals=True),
    broken(
        "publish refused yet it runs", Faults(refused_publishes=1), rules=Rules(refused_continuation_gives_back=True)
    ).until(refused_publish_withdraws=True),
    broken("canvas of duplicate dropped", Faults(), submissions=2, second_continues=True).until(
        canvas_is_published=True
    ),
    broken(
        "canvas of duplicate of dead",
        Faults(permanents=2),
        submissions=2,
        broker="amqp",
        second_continues=True,
        rules=Rules(ledger="off", canvas_is_published=True),
    ).until(existing_heals=True, dead_stays_dead=True),
    broken("retry before backoff", Faults(crashes=1, transients=1), broker="amqp", rules=Rules(ledger="off")).until(
        waits_for_due=True
    ),
    broken("retry before backoff steal", Faults(steals=1, transients=1), rules=Rules(ledger="off")).until(
        waits_for_due=True
    ),
    broken("dead key runs again", Faults(crashes=1, permanents=2), broker="amqp", rules=Rules(ledger="off")).until(
        dead_stays_dead=True
    ),
    broken(
        "message of an ended life",
        Faults(freezes=1, permanents=1),
        submissions=2,
        broker="amqp",
        rules=Rules(
            ledger="off", waits_for_due=True, gives_back_explicitly=True, dead_stays_dead=True, stale_gives_back=True
        ),
    ).until(lives=True),
    broken("revoke frees running key", Faults(revokes=1), submissions=2, rules=Rules(ledger="off")).until(
        generations=True, revoked_is_not_joined=True, existing_heals=True, revoke_leaves_tombstone=True
    ),
    broken("revoke forgotten by restart", Faults(crashes=1, revokes=1), revokes_are_forgotten=True).until(
        ledger="to the end", sweep_settles_revoked=True, revoke_leaves_tombstone=True
    ),
    broken("marker expires copy lives", Faults(steals=1, expired_markers=1), rules=Rules(ledger="off")).until(
        marker_outlives_copies=True
    ),
    broken(
        "complete on missing record",
        Faults(freezes=1, expired_markers=1),
        rules=Rules(
            ledger="off",
            marker_outlives_copies=True,
            late_is_not_run=True,
            stale_gives_back=True,
            missing_is_stale=False,
        ),
    ).until(missing_is_stale=True),
    broken(
        "ghost older than marker",
        Faults(freezes=1, expired_markers=1),
        rules=Rules(ledger="off", marker_outlives_copies=True, stale_gives_back=True),
    ).until(late_is_not_run=True),
    broken(
        "failover same fence",
        Faults(steals=1, lost_writes=1),
        tolerated=LOSES_WRITES,
        rules=Rules(ledger="to the end", waits_for_due=True, generations=True, stale_gives_back=True),
    ).until(higher_fence_wins=True),
    broken(
        "continuation refused",
        Faults(refused_publishes=1),
        first_continues=True,
        rules=Rules(ledger="to the end", gives_back_explicitly=True, refused_publish_withdraws=True),
    ).until(refused_continuation_gives_back=True),
    broken(
        "continuation lost in pop window",
        Faults(crashes=2),
        first_continues=True,
        rules=Rules(ledger="to the end", waits_for_due=True, generations=True),
    ).until(entry_lasts_to_report=True),
    broken(
        "revoked running job republished",
        Faults(crashes=1, revokes=1),
        rules=Rules(ledger="to the end", generations=True, revoke_leaves_tombstone=True),
    ).until(sweep_settles_revoked=True),
    broken("complete store away amqp", Faults(store_outages=1), broker="amqp", rules=Rules(ledger="off")).until(
        gives_back_explicitly=True, complete_keeps_trying=True
    ),
    broken(
        "retry publish refused amqp",
        Faults(refused_publishes=1, transients=1),
        broker="amqp",
        rules=Rules(
            ledger="off", waits_for_due=True, refused_continuation_gives_back=True, refused_publish_withdraws=True
        ),
    ).until(gives_back_explicitly=True),
    broken(
        "replay dies before publish",
        Faults(producer_crashes=1, permanents=1, replays=1),
        broker="amqp",
        rules=Rules(ledger="off", existing_heals=True, dead_stays_dead=True),
    ).until(ledger="to the end", replay_writes_entry=True),
    broken("store outage doubles everything", Faults(outages=1), rules=Rules(ledger="off")).until(grace=True),
    broken(
        "submission joins a revoked job",
        Faults(revokes=1),
        submissions=2,
        rules=Rules(ledger="to the end", sweep_settles_revoked=True, revoke_leaves_tombstone=True),
    ).until(revoked_is_not_joined=True, existing_heals=True),
    broken("drain frees before body ends", Faults(drains=1), rules=Rules(ledger="off")).until(drain_keeps_lease=True),
    broken("orphan pool child", Faults(orphans=1), rules=Rules(ledger="off")).until(children_die_with_parent=True),
    broken(
        "stale holder acks, no ledger",
        Faults(freezes=1, refused_publishes=1),
        rules=replace(NO_LEDGER, stale_gives_back=False),
        first_continues=True,
    ).until(stale_gives_back=True),
    broken(
        "replay dies before publish, no ledger",
        Faults(permanents=1, replays=1, producer_crashes=1),
        broker="amqp",
        rules=replace(NO_LEDGER, replay_writes_entry=False),
    ).until(replay_writes_entry=True),
    broken(
        "copies of a waiting message multiply",
        Faults(steals=1, crashes=1),
        most_messages=2,
        rules=replace(EVERY_RULE, waits_in_worker=False),
        first_continues=True,
    ).until(waits_in_worker=True),
)

# For each rule a scenario that breaks when this rule alone is taken out. Two are missing: `generations` is needless once
# `waits_in_worker` holds, and `tokens` while no fence is given twice.
MISSES: Final = {
    "ledger": "pop window retry",
    "waits_for_due": "retry before backoff",
    "existing_heals": "orphan key ledger off",
    "canvas_is_published": "canvas of duplicate dropped",
    "dead_stays_dead": "dead key runs again",
    "stale_gives_back": "stale holder acks, no ledger",
    "missing_is_stale": "complete on missing record",
    "higher_fence_wins": "failover same fence",
    "revoke_leaves_tombstone": "revoke forgotten by restart",
    "gives_back_explicitly": "retry publish refused amqp",
    "entry_lasts_to_report": "continuation lost in pop window",
    "refused_continuation_gives_back": "continuation refused",
    "refused_publish_withdraws": "publish refused yet it runs",
    "replay_writes_entry": "replay dies before publish, no ledger",
    "marker_outlives_copies": "marker expires copy lives",
    "sweep_settles_revoked": "revoke forgotten by restart",
    "late_is_not_run": "ghost older than marker",
    "drain_keeps_lease": "drain frees before body ends",
    "children_die_with_parent": "orphan pool child",
    "waits_in_worker": "copies of a waiting message multiply",
    "grace": "store outage doubles everything",
    "revoked_is_not_joined": "revoke frees running key",
    "lives": "message of an ended life",
}
REDUNDANT: Final = frozenset({"complete_keeps_trying"})  # as long as `gives_back_explicitly` holds
UNMISSED: Final = frozenset({"generations", "tokens"})

LARGE: Final[dict[str, Case]] = {
    "crash + crash + retry": whole(Faults(crashes=2, transients=1)),
    "crash + freeze + retry": whole(Faults(crashes=1, freezes=1, transients=1)),
    "freeze + freeze": whole(Faults(freezes=2)),
    "crash + permanent + replay": whole(Faults(crashes=1, permanents=1, replays=1)),
    "two submissions, canvas, crash, producer crash": whole(
        Faults(crashes=1, producer_crashes=1), submissions=2, second_continues=True
    ),
    "two submissions, publish refused, crash": whole(Faults(crashes=1, refused_publishes=1), submissions=2),
    "two submissions, permanent, crash": whole(Faults(crashes=1, permanents=1), submissions=2),
    "two submissions, canvas, permanent, freeze": whole(
        Faults(freezes=1, permanents=1), submissions=2, second_continues=True
    ),
    "same id sent twice, permanent, crash": whole(Faults(crashes=1, permanents=2), submissions=2, same_id=True),
    "steal + steal + crash": whole(Faults(crashes=1, steals=2)),
    "steal + retry + crash": whole(Faults(crashes=1, steals=1, transients=1)),
    "revoke + crash (memory lost)": whole(Faults(crashes=1, revokes=1), revokes_are_forgotten=True),
    "two submissions, revoke, crash": whole(Faults(crashes=1, revokes=1), submissions=2, revokes_are_forgotten=True),
    "store away + crash": whole(Faults(crashes=1, store_outages=1)),
    "marker + freeze + steal": whole(Faults(freezes=1, steals=1, expired_markers=1)),
    "drain + crash + retry": whole(Faults(crashes=1, transients=1, drains=1)),
    "amqp crash+freeze+retry": whole(Faults(crashes=1, freezes=1, transients=1), rules=NO_LEDGER, broker="amqp"),
    "amqp two submissions, producer crash, crash": whole(
        Faults(crashes=1, producer_crashes=1), rules=NO_LEDGER, broker="amqp", submissions=2
    ),
    "amqp publish refused x2, retry, crash": whole(
        Faults(crashes=1, refused_publishes=2, transients=1), rules=NO_LEDGER, broker="amqp"
    ),
    "amqp store away + freeze": whole(Faults(freezes=1, store_outages=1), rules=NO_LEDGER, broker="amqp"),
    "crash x2 + freeze + retry": whole(Faults(crashes=2, freezes=1, transients=1)),
    "crash x2 + steal + retry": whole(Faults(crashes=2, steals=1, transients=1)),
    "two submissions, canvas, crash x2, permanent": whole(
        Faults(crashes=2, permanents=1), submissions=2, second_continues=True
    ),
    "3 workers, crash x3, retry x2": whole(Faults(crashes=3, transients=2), workers=3, most_retries=2),
    "crash, freeze x2, retry": whole(Faults(crashes=1, freezes=2, transients=1)),
    "two submissions, canvas, crash, steal, producer crash, publish refused, store away": whole(
        Faults(crashes=1, steals=1, producer_crashes=1, refused_publishes=1, store_outages=1, permanents=1),
        submissions=2,
        second_continues=True,
    ),
    "two submissions, revoke, replay, crash": whole(
        Faults(crashes=1, permanents=2, revokes=1, replays=1), submissions=2, revokes_are_forgotten=True
    ),
    "two submissions, revoke, freeze, crash": whole(
        Faults(crashes=1, freezes=1, revokes=1), submissions=2, revokes_are_forgotten=True
    ),
    "amqp two submissions, crash, freeze, producer crash, publish refused, store away": whole(
        Faults(crashes=1, freezes=1, producer_crashes=1, refused_publishes=1, store_outages=1, permanents=1),
        rules=NO_LEDGER,
        broker="amqp",
        submissions=2,
        second_continues=True,
    ),
    "store loses a write (only: nothing lost)": whole(
        Faults(crashes=1, lost_writes=1),
        tolerated=(*LOSES_WRITES, "ran again after done"),
        rules=replace(EVERY_RULE, higher_fence_wins=True),
    ),
    "two submissions, store loses a write": whole(
        Faults(lost_writes=1),
        submissions=2,
        tolerated=(*LOSES_WRITES, "ran again after done"),
        rules=replace(EVERY_RULE, higher_fence_wins=True),
    ),
    "outage + crash + retry": whole(Faults(crashes=1, transients=1, outages=1)),
    "drain, orphan, freeze, crash, retry": whole(Faults(crashes=1, freezes=1, transients=1, drains=1, orphans=1)),
}
