"""The protocol holds in every interleaving of the small scenarios, and breaks in one when a rule is taken out.

The large scenarios are `python -m tests.model`.
"""

from __future__ import annotations

from dataclasses import fields

import pytest

from tests.model import beat, children
from tests.model.case import Rules
from tests.model.children import BODIES, BROKEN_BY_DRAFT, contract, differences, draft
from tests.model.explorer import Model, Move, explore
from tests.model.protocol import check
from tests.model.scenarios import MISSES, REDUNDANT, SMALL, UNMISSED, Repair

BY_NAME = {one.name: one for one in SMALL}


@pytest.mark.parametrize("scenario", SMALL, ids=lambda one: one.name)
def test_repaired_scenario_holds(scenario: Repair) -> None:
    """Safe in every state, and a good end stays in reach without further faults."""
    found = check(scenario.repaired)
    assert found.holds, found


@pytest.mark.parametrize("rule", MISSES)
def test_rule_is_missed(rule: str) -> None:
    """Taken out alone, in the scenario that is named for it."""
    assert not check(BY_NAME[MISSES[rule]].lacking(rule)).holds


def test_two_rules_stand_in_for_each_other() -> None:
    """A holder that cannot complete tries on, or gives its message back."""
    scenario = BY_NAME["complete store away amqp"]
    assert set(scenario.added) == {"gives_back_explicitly", *REDUNDANT}
    assert not check(scenario.without).holds


def test_every_rule_is_accounted_for() -> None:
    """Missed by a scenario, or it is said why not."""
    assert {one.name for one in fields(Rules)} == {*MISSES, *REDUNDANT, *UNMISSED}


@pytest.mark.parametrize("name", beat.SMALL)
def test_beat(name: str) -> None:
    """Each slot once, with the rules; the first draft breaks in all scenarios but one."""
    assert beat.check(beat.SMALL[name]).holds == (name in beat.HOLDS_BY_DRAFT)
    assert beat.check(beat.repaired(beat.SMALL[name])).holds == (name not in beat.NEVER_HOLDS)


@pytest.mark.parametrize("name", BODIES)
def test_children_of_a_killed_parent(name: str) -> None:
    """None is lost or doubled, wherever it was killed; by the ids of the first draft some were."""
    assert list(differences(BODIES[name], scheme=contract)) == []
    assert bool(list(differences(BODIES[name], scheme=draft))) == (name in BROKEN_BY_DRAFT)


def test_chord_that_was_sent_in_part_is_sent_again_as_a_whole() -> None:
    """Its members keep their ids, so that those of the second are not taken for those of the first."""
    sent = range(1, 4)
    assert all(children.chords_completed(members=4, sent_before_kill=one, keeps_ids=True) == 1 for one in sent)
    assert all(children.chords_completed(members=4, sent_before_kill=one, keeps_ids=False) == 0 for one in sent)


def test_link_equal_to_a_child_is_sent() -> None:
    """Its ids are of a name space of their own."""
    assert children.link_is_its_own(own_name_space=True)
    assert not children.link_is_its_own(own_name_space=False)


# --- the explorer itself


def counter(*, wrong: int = -1, good: int = 3) -> Model[int]:
    """Count to 3, or by a fault to 9 and no further."""
    steps = {0: [Move("one", 1), Move("jump", 9, fault=True)], 1: [Move("two", 2)], 2: [Move("three", 3)]}
    return Model(
        start=0,
        moves=lambda state: steps.get(state, []),
        wrong=lambda state: "wrong" if state == wrong else "",
        is_good_end=lambda state: state in (good, 9),
        lost="stuck",
    )


def test_explorer_tells_safe_stuck_and_endless_apart() -> None:
    """With the shortest way; a fault is no way to a good end."""
    assert explore(counter()).holds
    assert explore(counter(wrong=2)).trace == ("one", "two")
    found = explore(counter(good=9))
    assert (found.verdict, found.what, found.trace) == ("lost", "stuck", ())
    assert explore(counter(), most=2).verdict == "too many states"
