"""What makes two calls the same job."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import inspect
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_reliable import keys
from celery_reliable.errors import ConfigurationError
from celery_reliable.keys import Identity, Parent
from celery_reliable.stores.base import Job

if TYPE_CHECKING:
    from collections.abc import Callable

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


def order(order_id: int, currency: str = "EUR", *, note: str | None = None) -> None:
    """A body to bind calls to."""


def bound(*args: Any, **kwargs: Any) -> dict[str, Any]:
    """Bind a call of `order`."""
    return keys.bind(inspect.signature(order), args, kwargs)


class TestArguments:
    """Equal calls have one form."""

    def test_positional_keyword_and_default_are_one_call(self) -> None:
        """``f(1)``, ``f(order_id=1)`` and ``f(1, "EUR")`` are the same job."""
        forms = {keys.canonical(one) for one in (bound(1), bound(order_id=1), bound(1, "EUR"), bound(1, note=None))}
        assert len(forms) == 1

    def test_call_that_does_not_fit_raises_type_error(self) -> None:
        """As the call itself would."""
        with pytest.raises(TypeError):
            bound()

    @given(JSON)
    def test_form_survives_json(self, value: object) -> None:
        """The producer's arguments and those that a worker decodes have one form."""
        import json  # noqa: PLC0415

        assert keys.canonical(json.loads(json.dumps(value))) == keys.canonical(value)

    @pytest.mark.parametrize(
        "value",
        [
            dt.datetime(2026, 1, 2, tzinfo=dt.timezone.utc),
            dt.date(2026, 1, 2),
            decimal.Decimal("1.50"),
            uuid.UUID(int=7),
            {3, 1, 2},
            b"bytes",
            (1, 2),
        ],
    )
    def test_common_values_have_a_form(self, value: object) -> None:
        """What Celery's JSON carries can be part of a key."""
        assert keys.canonical({"x": value}) == keys.canonical({"x": value})

    def test_dataclass_has_a_form(self) -> None:
        """By its fields."""

        @dataclasses.dataclass
        class Point:
            x: int

        assert keys.canonical(Point(1)) == keys.canonical({"x": 1})

    def test_object_without_a_form_is_refused(self) -> None:
        """Its repr may hold an address, which would make every call a new job."""
        with pytest.raises(TypeError, match="callable idempotency_key"):
            keys.canonical(object())

    def test_fingerprint_differs_by_task_and_arguments(self) -> None:
        """So that two tasks with one key are a mismatch, too."""
        prints = {
            keys.fingerprint("a", bound(1)),
            keys.fingerprint("a", bound(2)),
            keys.fingerprint("b", bound(1)),
        }
        assert len(prints) == 3
        assert {len(one) for one in prints} == {8}

    def test_fingerprint_of_named_arguments_ignores_the_others(self) -> None:
        """``fingerprint_args`` says what must agree."""
        one, other = (keys.fingerprint("a", bound(1, note=note), only=["order_id"]) for note in ("x", "y"))
        assert one == other

    def test_fingerprint_that_cannot_be_told_is_empty(self) -> None:
        """An empty one never mismatches."""
        assert keys.fingerprint("a", {"x": object()}) == ""


class TestDeclared:
    """The project's own keys."""

    def declared(self, rule: Any, *args: Any, **kwargs: Any) -> str:
        """Return the key of a call of `order`."""
        return keys.declared_key(rule, keys.Bound.of(inspect.signature(order), args, kwargs), task="shop.order")

    def test_template_is_filled_from_bound_arguments(self) -> None:
        """Defaults included."""
        assert self.declared("order:{order_id}:{currency}", 7) == "order:7:EUR"

    def test_arguments_rule_tells_calls_apart(self) -> None:
        """One key for each set of arguments, with the task's name."""
        one, same, other = (
            self.declared("arguments", 7),
            self.declared("arguments", order_id=7),
            self.declared("arguments", 8),
        )
        assert one == same != other
        assert one.startswith("shop.order:")

    def test_callable_gets_the_call(self) -> None:
        """As it was made."""
        rule: Callable[..., str] = lambda order_id, **_: f"o{order_id}"  # noqa: E731
        assert self.declared(rule, 7) == "o7"

    @pytest.mark.parametrize("template", ["x:{ordr_id}", "x:{}", "x:{order_id", "constant"])
    def test_wrong_template_is_refused_at_registration(self, template: str) -> None:
        """The text names the template and the arguments there are."""
        with pytest.raises(ConfigurationError, match=r"shop\.order: idempotency_key") as caught:
            keys.check_rule(template, task="shop.order", signature=inspect.signature(order))
        assert template in str(caught.value)

    def test_template_may_name_any_keyword_of_a_double_star(self) -> None:
        """Only the call can tell."""

        def free(**kwargs: Any) -> None: ...

        signature = inspect.signature(free)
        keys.check_rule("x:{order_id}", task="t", signature=signature)
        assert keys.declared_key("x:{order_id}", keys.Bound.of(signature, (), {"order_id": 3}), task="t") == "x:3"

    def test_template_that_cannot_be_filled_says_why(self) -> None:
        """The argument is there, its attribute is not."""
        with pytest.raises(ConfigurationError, match="cannot be filled in"):
            self.declared("x:{order_id.number}", 7)

    @pytest.mark.parametrize("key", ["", None, 7, "x" * 513, "ü" * 257])
    def test_empty_foreign_or_overlong_key_is_refused(self, key: object) -> None:
        """At most 512 bytes, and a text."""
        with pytest.raises(ConfigurationError, match="1 to 512 bytes"):
            keys.checked_key(key, task="t")

    def test_longest_key_is_accepted(self) -> None:
        """Exactly 512 bytes."""
        assert keys.checked_key("ü" * 256, task="t") == "ü" * 256

    def test_overlong_task_id_is_refused(self) -> None:
        """Records keep ids."""
        with pytest.raises(ConfigurationError, match="task_id"):
            keys.checked_id("x" * 256, task="t")


class TestDerived:
    """Ids of children, the same each time their parent runs."""

    def run(self, calls: list[str], *, checks: int = 0) -> list[str]:
        """Return the ids that one run of a parent gives its children; "|" saves a checkpoint."""
        parent, ids = Parent("parent", checks), []
        for call in calls:
            if call == "|":
                parent.checked()
            else:
                ids.append(parent.child_id("child", call))
        return ids

    def test_second_run_gives_the_same_ids(self) -> None:
        """Equal calls are told apart by their order."""
        calls = ["a", "b", "a"]
        assert self.run(calls) == self.run(calls)
        assert len(set(self.run(calls))) == 3

    def test_calls_after_a_checkpoint_are_other_children(self) -> None:
        """P14: without the checkpoint's number a resumed parent takes new children for old ones and loses them."""
        before, after = self.run(["a", "|", "a"])
        assert before != after
        assert self.run(["a"], checks=1) == [after]

    @given(st.lists(st.sampled_from(["a", "b", "|"]), max_size=10), st.integers(0, 10))
    def test_parent_killed_anywhere_loses_and_doubles_no_child(self, ops: list[str], kill: int) -> None:
        """P14: run from the last checkpoint before the kill to the end."""
        wanted = self.run(ops)
        kill = min(kill, len(ops))
        done = self.run(ops[:kill])
        last = max((i + 1 for i in range(kill) if ops[i] == "|"), default=0)
        resumed = self.run(ops[last:], checks=ops[:last].count("|"))
        assert sorted(set(done) | set(resumed)) == sorted(wanted)

    def test_scope_gives_its_calls_a_parent_and_ends(self) -> None:
        """A repeated request submits the same jobs; outside, every call is its own."""
        ids = []
        for _ in range(2):
            with keys.scope("request-1"):
                parent = keys.current_parent()
                assert parent is not None
                ids.append(parent.child_id("t", "1"))
        assert ids[0] == ids[1]
        assert keys.current_parent() is None

    def test_scope_without_a_name_is_refused(self) -> None:
        """An empty name would make one job of all requests."""
        with pytest.raises(ConfigurationError, match="scope"), keys.scope(""):
            pass

    def test_ids_keep_their_scheme(self) -> None:
        """Pinned: another scheme would take old children for new ones during a roll-out."""
        assert keys.derived_id("parent", "0", "child\0a", "1") == "27ff2ba3-559c-50f3-93dc-912cd3e6417e"


class TestHeader:
    """What travels in the message."""

    @pytest.mark.parametrize(
        "identity",
        [
            Identity(Job("id-1", "own", 17), "id-1", "", 1),
            Identity(Job("charge:7", "declared", 17), "id-1", "printed1", 3),
            Identity(Job("id-1:2", "given", 17), "id-1", "", 1, 2),
            Identity(Job("id-1", "derived", 17), "id-1", "", 1),
        ],
    )
    def test_identity_survives_the_header(self, identity: Identity) -> None:
        """To the last field."""
        assert keys.identity_of(identity.to_header(), task_id="id-1", nesting=identity.nesting) == identity

    @pytest.mark.parametrize("header", [None, "text", {}, {"i": "another"}, {"i": "id-1", "n": 1}])
    def test_foreign_or_inherited_header_is_no_identity(self, header: object) -> None:
        """A task that passes its headers on to a child does not pass on its identity."""
        assert keys.identity_of(header, task_id="id-1") is None


def test_what_belongs_to_one_delivery_is_not_sent_on() -> None:
    """A retry would begin at once at the moment that its predecessor has reserved."""
    assert keys.lasting({keys.TOKEN: "a", keys.MOMENT: 7, "mine": 1}) == {"mine": 1}
