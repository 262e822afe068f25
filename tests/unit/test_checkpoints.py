"""Checkpoints: states, loops and steps that the next run goes on from."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_reliable.blobs import Blobs
from celery_reliable.checkpoints import Checkpoint, Progress, Room
from celery_reliable.errors import BlobLost, ConfigurationError, Draining, LeaseLost, Snooze

LIMIT = 1000
OBJECTS = [object() for _ in range(8)]


class Run:
    """One run of a job. Its store is a dict, which the next run gets."""

    def __init__(self, saved: dict[str, bytes] | None = None, *, version: int = 1, room: Room | None = None) -> None:
        """Begin where the runs before stopped."""
        self.key = "job:1"
        self.saved = {} if saved is None else saved
        self.version = version
        self.room = room or Room(LIMIT, None, 3600.0)
        self.progress = Progress(self)
        self.stale = False
        self.saves = 0
        self.draining = False
        self.checkpoint = Checkpoint(lambda: self, draining=lambda: self.draining)

    def save(self, name: str, body: bytes) -> None:
        """Keep, or refuse."""
        if self.stale:
            msg = "taken over"
            raise LeaseLost(msg)
        self.saves += 1
        self.saved[name] = body

    def again(self, **options: Any) -> Run:
        """The next run of the job."""
        return Run(self.saved, **{"room": self.room, "version": self.version, **options})

    def take(self, items: Iterable[Any], count: int = 10**9, **options: Any) -> list[Any]:
        """Iterate, and be killed in the middle of the item after ``count`` finished ones."""
        seen: list[Any] = []
        for item in self.checkpoint.iterate(items, **options):
            if len(seen) == count:
                return seen
            seen.append(item)
        return seen


@pytest.fixture
def run() -> Run:
    """The first run of a job."""
    return Run()


@pytest.fixture
def aside(tmp_path: Path) -> Room:
    """A folder for what is larger than `LIMIT`."""
    return Room(LIMIT, Blobs(str(tmp_path), now=lambda: 1_900_000_000_000_000), 3600.0)


def blobs_in(folder: Path) -> list[Path]:
    """All blobs of a test."""
    return [path for path in folder.rglob("*") if path.is_file()]


class TestStates:
    """What `save` took, `load` gives."""

    def test_load_gives_what_was_saved(self, run: Run) -> None:
        """And the default before."""
        assert run.checkpoint.load({"done": 0}) == {"done": 0}
        run.checkpoint.save({"done": 3})
        assert run.checkpoint.load() == {"done": 3}
        assert run.again().checkpoint.load() == {"done": 3}

    def test_state_without_loops_is_stored_as_plain_json(self, run: Run) -> None:
        """What an earlier release wrote reads the same."""
        run.checkpoint.save([1])
        assert run.saved == {"state": b"[1]"}

    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        )
    )
    def test_every_plain_state_survives(self, state: Any) -> None:
        """None too: it is a state, not a missing one."""
        run = Run(room=Room(10**9, None, 0.0))
        run.checkpoint.save(state)
        assert run.again().checkpoint.load("missing") == state

    def test_stale_holder_is_refused(self, run: Run) -> None:
        """It cannot overwrite the newer one's progress."""
        run.checkpoint.save(1)
        run.stale = True
        with pytest.raises(LeaseLost):
            run.checkpoint.save(2)
        assert run.again().checkpoint.load() == 1

    @pytest.mark.parametrize(
        ("state", "found"),
        [
            (object(), "object at the whole of it"),
            ({"rows": [{}, {"when": dt.date(2031, 5, 1)}]}, r"date at rows\[1\]\.when"),
            ({"seen": {1, 2}}, "set at seen"),
            ({"by_id": {7: "x"}}, r"a key of type int \(7\) at by_id"),
            ((1, b"raw"), r"bytes at \[1\]"),
        ],
    )
    def test_state_that_json_cannot_carry_names_type_and_place(self, run: Run, state: Any, found: str) -> None:
        """A dict with numbers as keys would come back with texts."""
        with pytest.raises(ConfigurationError, match=f"checkpoint: expected plain data, found {found}"):
            run.checkpoint.save(state)

    def test_endless_state_is_refused(self, run: Run) -> None:
        """One that holds itself."""
        state: list[Any] = []
        state.append(state)
        with pytest.raises(ConfigurationError, match="more than 100 levels"):
            run.checkpoint.save(state)


class TestVersions:
    """A deploy changes the shape of the state."""

    def test_older_state_is_upgraded_and_saved_with_the_new_version(self, run: Run) -> None:
        """The function gets the state and its version."""
        run.checkpoint.save({"page": 3})
        newer = run.again(version=3)
        assert newer.checkpoint.load(upgrade=lambda state, version: {**state, "from": version}) == {
            "page": 3,
            "from": 1,
        }
        newer.checkpoint.save({"page": 4})
        assert newer.again().checkpoint.load() == {"page": 4}

    def test_older_state_without_upgrade_is_refused(self, run: Run) -> None:
        """Beginning again in silence would repeat effects; the letter keeps the checkpoint."""
        run.checkpoint.save({"page": 3})
        newer = run.again(version=2)
        with pytest.raises(ConfigurationError, match=r"expected version 2 .*found version 1.*upgrade=.*replay"):
            newer.checkpoint.load()
        with pytest.raises(ConfigurationError, match="found version 1"):
            newer.checkpoint.load({"page": 0})

    def test_newer_state_waits_for_a_worker_that_knows_it(self, run: Run) -> None:
        """In the middle of a rolling deploy; no attempt is spent."""
        newer = run.again(version=2)
        newer.checkpoint.save({"page": 3})
        with pytest.raises(Snooze):
            newer.again(version=1).checkpoint.load(upgrade=lambda state, _: state)

    def test_nothing_saved_is_of_every_version(self) -> None:
        """The default."""
        assert Run(version=5).checkpoint.load("none", upgrade=_never) == "none"

    def test_positions_of_older_code_are_refused_too(self, run: Run) -> None:
        """Unless the body loaded with an upgrade."""
        run.take(range(5), 3)
        newer = run.again(version=2)
        with pytest.raises(ConfigurationError, match="found version 1"):
            newer.take(range(5))
        newer.checkpoint.load(upgrade=lambda state, _: state)
        assert newer.take(range(5)) == [3, 4]


def _never(*_: Any) -> Any:
    raise AssertionError


class TestLoops:
    """`iterate` goes on after the last finished item."""

    @pytest.mark.parametrize(
        "items",
        [
            lambda: [*"abcdefgh"],
            lambda: range(8),
            lambda: (number * number for number in range(8)),
            lambda: {f"k{number}": number for number in range(8)},
            {f"k{number}": number for number in range(8)}.items,
            lambda: [{"id": number} for number in range(8)],
            OBJECTS.copy,
        ],
        ids=["list", "range", "generator", "dict", "items", "dicts", "objects"],
    )
    def test_next_run_begins_after_the_last_finished_item(self, run: Run, items: Callable[[], Iterable[Any]]) -> None:
        """Every kind of items; the one under way is done again."""
        everything = list(items())
        assert run.take(items(), 3) == everything[:3]
        assert run.again().take(items()) == everything[3:]

    @given(st.integers(0, 20), st.integers(1, 7), st.lists(st.integers(0, 6), max_size=5))
    def test_every_item_is_done_whatever_the_kills(self, size: int, every: int, kills: list[int]) -> None:
        """In order; what is done again is less than ``every`` items and the one under way."""
        run, done = Run(), list[int]()
        for kill in kills:
            seen = run.take(range(size), kill, every=every)
            assert seen == list(range(seen[0], seen[0] + len(seen))) if seen else True
            assert not seen or not done or done[-1] + 1 - every < seen[0] <= done[-1] + 1
            done = done if len(seen) < 1 else [*done[: seen[0]], *seen]
            run = run.again()
        done = [*done, *run.take(range(size), every=every)]
        assert sorted(set(done)) == list(range(size))

    def test_items_are_not_stored(self, run: Run) -> None:
        """A million long texts cost a position."""
        run.take(["x" * 900 for _ in range(50)], 30)
        assert sum(map(len, run.saved.values())) < 300

    def test_saves_after_every_so_many_items_and_at_the_end(self, run: Run) -> None:
        """Round trips are what a save costs."""
        run.take(range(25), every=10)
        assert run.saves == 3

    def test_ended_loop_is_not_begun_again(self, run: Run) -> None:
        """Its items are not even asked for."""
        run.take(range(3))

        def untouched() -> Iterator[int]:
            raise AssertionError
            yield 0

        assert run.again().take(untouched()) == []

    def test_drain_saves_and_stops_between_two_items(self, run: Run) -> None:
        """No item is interrupted, none is done twice."""
        seen: list[int] = []

        def work() -> None:
            for item in run.checkpoint.iterate(range(9), every=100):
                seen.append(item)
                run.draining = item == 4

        with pytest.raises(Draining):
            work()
        assert seen == [0, 1, 2, 3, 4]
        assert run.again().take(range(9)) == [5, 6, 7, 8]

    def test_drain_during_the_last_item_ends_the_loop(self, run: Run) -> None:
        """There is nothing left to stop."""
        for item in run.checkpoint.iterate(range(3)):
            run.draining = item == 2
        assert run.again().take(range(3)) == []

    def test_exception_of_the_body_saves_the_finished_items(self, run: Run) -> None:
        """`Progress.flush` is what the execution calls; a retry goes on with the item that failed."""
        for item in run.checkpoint.iterate(range(9), every=100):
            if item == 4:
                break
        run.progress.flush()
        assert run.again().take(range(9)) == [4, 5, 6, 7, 8]

    def test_state_is_saved_with_the_position(self, run: Run) -> None:
        """In one write: a sum never counts an item twice."""

        def add_up(run: Run, items: range, fail_at: int) -> int:
            total = run.checkpoint.load(0)
            for item in run.checkpoint.iterate(items, every=4, state=lambda: total):  # noqa: B023  # asked for in the loop
                total += item
                if item == fail_at:
                    return total
            return total

        add_up(run, range(20), fail_at=13)
        run.progress.flush()  # nothing: the sum has an item in it that is not finished
        assert run.again().checkpoint.load() == sum(range(12))
        assert add_up(run.again(), range(20), fail_at=-1) == sum(range(20))
        assert run.again().checkpoint.load() == sum(range(20))

    def test_save_of_a_state_keeps_the_positions(self, run: Run) -> None:
        """Beside each other."""
        run.take(range(9), 3)
        run.checkpoint.save("mine")
        later = run.again()
        assert later.take(range(9)) == [3, 4, 5, 6, 7, 8]
        assert later.checkpoint.load() == "mine"

    def test_changed_list_is_noticed(self, run: Run) -> None:
        """The last finished item is not where it was."""
        run.take(["a", "b", "c", "d"], 2)
        with pytest.raises(ConfigurationError, match=r"expected item 2 to be str:b.*found str:c.*key="):
            run.again().take(["b", "c", "d"])

    def test_shorter_list_is_noticed(self, run: Run) -> None:
        """It has no item at the position."""
        run.take(range(9), 5)
        with pytest.raises(ConfigurationError, match="found fewer items"):
            run.again().take(range(3))

    def test_appended_items_are_done(self, run: Run) -> None:
        """They come after the position."""
        run.take([1, 2, 3], 2)
        assert run.again().take([1, 2, 3, 4]) == [3, 4]

    def test_item_that_the_body_changed_is_no_changed_list(self, run: Run) -> None:
        """Only what cannot change is compared."""
        items = [{"done": False} for _ in range(3)]
        for item in run.checkpoint.iterate(items):
            if item is items[2]:
                break
            item["done"] = True
        assert len(run.again().take([{"done": False} for _ in range(3)])) == 1

    def test_key_finds_the_place_in_a_changed_list(self, run: Run) -> None:
        """What came before the last key, added or removed, does not matter."""
        run.take([{"id": 1}, {"id": 3}, {"id": 5}, {"id": 7}], 2, key=_id)
        rest = run.again().take([{"id": 2}, {"id": 4}, {"id": 7}], key=_id)
        assert rest == [{"id": 4}, {"id": 7}]

    def test_key_may_be_a_tuple(self, run: Run) -> None:
        """It comes back as a list."""
        items = [("a", 1), ("a", 2), ("b", 1)]
        run.take(items, 2, key=lambda item: item)
        assert run.again().take(items, key=lambda item: item) == [("b", 1)]

    @pytest.mark.parametrize("ids", [[1, 3, 2], [1, 1], [1, "x"]])
    def test_keys_that_do_not_grow_are_refused(self, run: Run, ids: list[Any]) -> None:
        """An item would be skipped."""
        with pytest.raises(ConfigurationError, match="key"):
            run.take([{"id": one} for one in ids], key=_id)

    @pytest.mark.parametrize("key", [None, object(), "x" * 600])
    def test_key_that_cannot_be_kept_is_refused(self, run: Run, key: Any) -> None:
        """Missing, no plain data, too long."""
        with pytest.raises(ConfigurationError, match=r"key of loop|short text"):
            run.take([1], key=lambda _: key)

    def test_second_loop_needs_a_name(self, run: Run) -> None:
        """It would go on where the first one was."""
        run.take(range(3))
        with pytest.raises(ConfigurationError, match="name of its own"):
            run.take(range(3))
        assert run.take(range(3), name="second") == [0, 1, 2]

    def test_two_loops_go_on_where_each_was(self, run: Run) -> None:
        """One after the other."""
        run.take("abc", name="letters")
        run.take(range(9), 4, name="numbers")
        later = run.again()
        assert later.take("abc", name="letters") == []
        assert later.take(range(9), name="numbers") == [4, 5, 6, 7, 8]

    @given(st.lists(st.integers(0, 11), max_size=6), st.integers(1, 4), st.integers(1, 4))
    def test_loop_in_a_loop_skips_nothing(self, kills: list[int], outer: int, inner: int) -> None:
        """Whatever is killed where, and however often each saves."""
        run, done = Run(), set()
        for kill in [*kills, 10**9]:
            done |= set(_nested(run, kill, outer=outer, inner=inner))
            run = run.again()
        assert done == {(row, column) for row in range(3) for column in range(4)}

    def test_loop_in_a_loop_goes_on_inside(self, run: Run) -> None:
        """The inner position belongs to the outer item."""
        first = _nested(run, 6, outer=1, inner=1)
        rest = _nested(run.again(), 10**9, outer=1, inner=1)
        assert first + rest == [(row, column) for row in range(3) for column in range(4)]

    @pytest.mark.parametrize(
        ("items", "options", "found"),
        [
            ({1, 2}, {}, "a set"),
            (7, {}, "int"),
            ([1], {"every": 0}, "every"),
            ([1], {"every": 0.5}, "every"),
            ([1], {"name": "x" * 201}, "name"),
        ],
    )
    def test_wrong_call_is_refused(self, run: Run, items: Any, options: Any, found: str) -> None:
        """Before the first item."""
        with pytest.raises(ConfigurationError, match=found):
            run.checkpoint.iterate(items, **options)

    def test_stale_holder_stops_at_its_next_save(self, run: Run) -> None:
        """Its loop does not go on."""
        seen: list[int] = []

        def work() -> None:
            for item in run.checkpoint.iterate(range(9)):
                seen.append(item)
                run.stale = item == 3

        with pytest.raises(LeaseLost):
            work()
        assert seen == [0, 1, 2, 3]
        assert run.again().take(range(9))[0] == 3

    def test_outside_a_worker_it_is_a_plain_loop(self) -> None:
        """Direct calls and eager mode."""
        assert list(Checkpoint(lambda: None).iterate(range(3))) == [0, 1, 2]


def _id(item: dict[str, Any]) -> Any:
    return item["id"]


def _nested(run: Run, kill: int, *, outer: int, inner: int) -> list[tuple[int, int]]:
    """Iterate over rows, and in each over columns, and be killed in the middle of an item."""
    seen: list[tuple[int, int]] = []
    for row in run.checkpoint.iterate(range(3), name="rows", every=outer):
        for column in run.checkpoint.iterate(range(4), name="columns", every=inner):
            if len(seen) == kill:
                return seen
            seen.append((row, column))
    return seen


class TestSteps:
    """`once` runs a step until its result is kept."""

    def test_step_runs_once_and_keeps_its_result(self, run: Run) -> None:
        """Also None."""
        runs: list[int] = []
        for one in (run, run, run.again()):
            assert one.checkpoint.once("charge", lambda: runs.append(1)) is None
        assert len(runs) == 1

    def test_step_key_names_job_and_step(self, run: Run) -> None:
        """For outside APIs."""
        assert run.checkpoint.once_key("charge") == "job:1:charge"

    def test_result_that_json_cannot_carry_names_step_and_type(self, run: Run) -> None:
        """The step is not kept."""
        with pytest.raises(ConfigurationError, match=r"result of step 'make': .*object at the whole of it"):
            run.checkpoint.once("make", object)

    def test_steps_have_a_limit(self, run: Run) -> None:
        """Each claim hands all of them out."""
        for number in range(1000):
            run.checkpoint.once(str(number), int)
        with pytest.raises(ConfigurationError, match="at most 1000 steps"):
            run.checkpoint.once("more", int)
        assert run.checkpoint.once("0", _never) == 0


class TestLargeOnes:
    """Above the limit a value is kept aside, or refused."""

    LARGE = "x" * (LIMIT + 1)

    def test_without_a_folder_it_is_refused_with_the_setting(self, run: Run) -> None:
        """And what to do."""
        with pytest.raises(ConfigurationError, match=r"claim_check_threshold.*found 1003.*reliable_blob_url"):
            run.checkpoint.save(self.LARGE)
        with pytest.raises(ConfigurationError, match=r"result of step 'big'.*reliable_blob_url"):
            run.checkpoint.once("big", lambda: self.LARGE)

    def test_large_state_comes_back(self, aside: Room, tmp_path: Path) -> None:
        """A reference is in the store."""
        run = Run(room=aside)
        run.checkpoint.save(self.LARGE)
        assert run.again().checkpoint.load() == self.LARGE
        assert len(run.saved["state"]) < 300
        assert len(blobs_in(tmp_path)) == 1

    def test_step_result_comes_back(self, aside: Room) -> None:
        """It too."""
        run = Run(room=aside)
        assert run.checkpoint.once("big", lambda: self.LARGE) == self.LARGE
        assert run.again().checkpoint.once("big", _never) == self.LARGE

    def test_next_save_removes_the_blob_of_the_one_before(self, aside: Room, tmp_path: Path) -> None:
        """Also a small one."""
        run = Run(room=aside)
        for _ in range(3):
            run.checkpoint.save(self.LARGE)
        assert len(blobs_in(tmp_path)) == 1
        run.checkpoint.save("small")
        assert blobs_in(tmp_path) == []

    def test_positions_move_without_writing_the_blob_again(self, aside: Room, tmp_path: Path) -> None:
        """A large state beside a loop costs once."""
        run = Run(room=aside)
        run.checkpoint.save(self.LARGE)
        (before,) = blobs_in(tmp_path)
        run.take(range(9), 5)
        assert blobs_in(tmp_path) == [before]
        assert run.again().checkpoint.load() == self.LARGE

    def test_stale_holder_removes_its_own_blob_and_not_the_live_one(self, aside: Room, tmp_path: Path) -> None:
        """The new holder's state stays readable."""
        run = Run(room=aside)
        run.checkpoint.save(self.LARGE)
        run.stale = True
        with pytest.raises(LeaseLost):
            run.checkpoint.save(self.LARGE + "newer")
        assert len(blobs_in(tmp_path)) == 1
        assert run.again().checkpoint.load() == self.LARGE

    def test_missing_and_altered_blobs_are_told(self, aside: Room, tmp_path: Path) -> None:
        """Never another state."""
        run = Run(room=aside)
        run.checkpoint.save(self.LARGE)
        (blob,) = blobs_in(tmp_path)
        blob.write_bytes(json.dumps("y" * (LIMIT + 1)).encode())
        with pytest.raises(BlobLost, match="SHA-256"):
            run.again().checkpoint.load()
        blob.unlink()
        with pytest.raises(BlobLost, match="found nothing"):
            run.again().checkpoint.load()

    def test_reference_without_a_folder_names_the_setting(self, aside: Room) -> None:
        """The setting was removed meanwhile."""
        run = Run(room=aside)
        run.checkpoint.save(self.LARGE)
        with pytest.raises(ConfigurationError, match="reliable_blob_url"):
            run.again(room=Room(LIMIT, None, 3600.0)).checkpoint.load()

    def test_upgraded_state_goes_where_its_size_belongs(self, aside: Room, tmp_path: Path) -> None:
        """Small becomes large; the next position is enough to write it."""
        run = Run(room=aside)
        run.checkpoint.save("small")
        newer = run.again(version=2)
        newer.checkpoint.load(upgrade=lambda _, __: self.LARGE)
        newer.take(range(3), 2)
        assert newer.again().checkpoint.load() == self.LARGE
        assert len(blobs_in(tmp_path)) == 1
