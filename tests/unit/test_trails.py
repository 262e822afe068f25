"""What is noted of a job's life, how much of it, and how it is told."""

from __future__ import annotations

import html
import io
from collections.abc import Sequence
from typing import Any

import pytest
from rich.console import Console

from celery_reliable import trails
from celery_reliable.cli import explain_screens
from celery_reliable.dead_letters import DeadLetter, Replay
from celery_reliable.errors import StoreUnavailable
from celery_reliable.events import EVENTS, Events
from celery_reliable.explaining import Explaining, Life, Outcome
from celery_reliable.payloads import Envelope
from celery_reliable.stores.base import Job
from celery_reliable.stores.memory import MemoryStore
from celery_reliable.stores.notes import MemoryNotes, Write
from celery_reliable.trails import Place, Trails, key_of, lines_of

SIZE = 1024
JOB = {"task": "shop.charge", "task_id": "id-1", "key": "charge:1"}
WAITS = sorted(name for name, event in EVENTS.items() if name.endswith("_waits") and "task_id" in event.fields)
RETRIED = {**JOB, "attempt": 2, "delay": 1.23456, "rule": "http", "error": "ConnectionError"}


class Desk:
    """A store with a clock, and its trails."""

    def __init__(self, *, share: float = 1.0, size: int = SIZE) -> None:
        """Begin at 100 s."""
        self.time = 100.0
        self.store = MemoryStore(clock=lambda: self.time)
        self.trails = Trails(self.store.notes, now=self.store.now, host="h", size=size, share=share)
        self.outcomes: dict[str, Outcome] = {}

    def note(self, event: str, **changes: Any) -> None:
        """Let something happen, a second later."""
        self.time += 1
        self.trails(event, {**JOB, **changes})

    def lines(self, key: str = "charge:1") -> list[str]:
        """Return the events noted of a key."""
        return [line.event for line in lines_of(self.store.notes, [key])]

    def life(self, asked: str = "charge:1") -> Life:
        """Tell a life."""
        life = Explaining(self.store, outcome=self.outcomes.get).life(asked)
        assert life is not None
        return life

    def value(self, key: str = "charge:1") -> bytes:
        """Return what lies at a key's place."""
        name = Place.of(key).name
        return self.store.notes.read(trails.SHELF, [name])[name].value


@pytest.fixture
def desk() -> Desk:
    """An empty store."""
    return Desk()


class Away(MemoryNotes):
    """Notes of a store that does not answer."""

    tries = 0

    def write(self, shelf: str, writes: Sequence[Write]) -> list[int | None]:
        """Fail, and count."""
        self.tries += 1
        raise StoreUnavailable("away")


class Counting(MemoryNotes):
    """Notes that count how often they are written."""

    rounds = 0

    def write(self, shelf: str, writes: Sequence[Write]) -> list[int | None]:
        """Count, and write."""
        self.rounds += 1
        return super().write(shelf, writes)


class TestNoting:
    """What is written, and how much."""

    def test_everything_noted_is_an_event(self) -> None:
        """No name is misspelled, and what every job does is not among them."""
        assert EVENTS.keys() >= trails.EVENTS
        assert not trails.EVENTS & {"submitted", "claimed", "done"}

    def test_line_says_what_when_and_where(self, desk: Desk) -> None:
        """With the facts of the event, floats rounded, and the task id beside the key."""
        desk.note("retried", **RETRIED)
        [line] = lines_of(desk.store.notes, ["charge:1"])
        assert (line.at, line.event, line.task, line.task_id) == (101.0, "retried", "shop.charge", "id-1")
        assert line.place.startswith("h:")
        assert line.facts == {"attempt": 2, "delay": 1.235, "rule": "http", "error": "ConnectionError"}

    def test_task_id_leads_to_the_key(self, desk: Desk) -> None:
        """So that a job is found by either."""
        desk.note("retried", **RETRIED)
        assert key_of(desk.store.notes, "id-1") == "charge:1"
        assert key_of(desk.store.notes, "id-2") == ""

    def test_trail_is_bounded_and_the_newest_stays(self, desk: Desk) -> None:
        """At most 1 KB, however long it gets; what is cut in the middle is not shown."""
        for attempt in range(1, 101):
            desk.note("retried", **{**RETRIED, "attempt": attempt})
        assert len(desk.value()) <= SIZE
        kept = lines_of(desk.store.notes, ["charge:1"])
        assert len(kept) >= 7
        assert [line.facts["attempt"] for line in kept] == list(range(101 - len(kept), 101))

    def test_life_of_the_default_retries_fits_whole(self, desk: Desk) -> None:
        """Five retries, each with its claim, and the letter at the end."""
        for attempt in range(1, 6):
            desk.note("retried", **{**RETRIED, "attempt": attempt})
            desk.note(
                "claimed_again", fence=1_764_494_000_000_000 + attempt, attempt=attempt + 1, delivery=1, submitted=9.5
            )
        desk.note("buried", reason="exhausted", error="ConnectionError", letter_id="0123456789abcdef", attempts=6)
        assert desk.lines() == ["retried", "claimed_again"] * 5 + ["buried"]

    def test_what_comes_again_and_again_is_noted_ever_more_rarely(self, desk: Desk) -> None:
        """A message that waits for a minute leaves seven lines, not sixty."""
        for _ in range(64):
            desk.note("busy", wait=1.0)
        assert [line.times for line in lines_of(desk.store.notes, ["charge:1"])] == [1, 2, 4, 8, 16, 32, 64]

    @pytest.mark.parametrize("event", WAITS)
    def test_every_wait_of_a_job_is_noted_and_ever_more_rarely(self, desk: Desk, event: str) -> None:
        """Whatever it waits for: another run, its turn, a breaker, a limit, a rate, a budget."""
        for _ in range(64):
            desk.note(event, **dict.fromkeys(EVENTS[event].fields[3:], "x") | {"wait": 1.0})
        assert [line.times for line in lines_of(desk.store.notes, ["charge:1"])] == [1, 2, 4, 8, 16, 32, 64]
        assert "waited 1 s: " in desk.life().moments[0].words

    def test_trail_of_a_job_that_waits_at_every_gate_is_bounded(self, desk: Desk) -> None:
        """At most 1 KB, with the last wait at each gate in it."""
        for _ in range(64):
            for event in WAITS:
                desk.note(event, **dict.fromkeys(EVENTS[event].fields[3:], "payments.example") | {"wait": 1.0})
        assert len(desk.value()) <= SIZE
        assert set(desk.lines()) == set(WAITS)

    def test_two_keys_at_one_place_are_told_apart(self, desk: Desk) -> None:
        """Places are shared; lines carry the tag of their key."""
        first = Place.of("charge:1")
        other = next(key for number in range(10**7) if (key := f"k{number}") and Place.of(key).name == first.name)
        desk.note("retried", **RETRIED)
        desk.note("stale", key=other, task_id=other, verb="run", fence=1)
        assert (desk.lines(), desk.lines(other)) == (["retried"], ["stale"])

    @pytest.mark.parametrize(("share", "least", "most"), [(0.0, 0, 0), (0.25, 50, 450), (1.0, 1000, 1000)])
    def test_share_of_the_jobs_is_noted(self, share: float, least: int, most: int) -> None:
        """A job has its whole trail or none."""
        desk = Desk(share=share)
        for number in range(1000):
            desk.note("stale", key=f"k{number}", task_id=f"k{number}", verb="run", fence=number)
        noted = sum(bool(desk.lines(f"k{number}")) for number in range(1000))
        assert least <= noted <= most

    def test_last_save_is_told_with_the_next_event_and_asks_for_nothing_itself(self, desk: Desk) -> None:
        """A thousand saves cost no round trip, and leave one line, of the time of the last one."""
        notes = Counting(clock=lambda: 0.0)
        noting = Trails(notes, now=desk.store.now, host="h", size=SIZE, share=1.0)
        for number in range(1, 1001):
            noting("saved", {**JOB, "saves": number})
        assert notes.rounds == 0
        noting("retried", RETRIED)
        noting("stale", {**JOB, "fence": 1, "verb": "done"})
        assert notes.rounds == 2
        lines = lines_of(notes, ["charge:1"])
        assert [(line.event, line.facts.get("saves")) for line in lines] == [
            ("saved", 1000), ("retried", None), ("stale", None)
        ]  # fmt: skip
        assert lines[0].at <= lines[1].at

    def test_saves_of_jobs_that_end_well_are_forgotten(self, desk: Desk) -> None:
        """A process keeps the last thousand in mind, whatever it runs."""
        for number in range(2000):
            desk.note("saved", key=f"k{number}", saves=1)
        for number in range(2000):
            desk.note("stale", key=f"k{number}", fence=1, verb="done")
        assert sum("saved" in desk.lines(f"k{number}") for number in range(990, 1010)) == 10

    def test_job_that_is_claimed_again_says_after_which_save_it_goes_on(self, desk: Desk) -> None:
        """So that it is known also when the process that saved was killed."""
        claimed = {"fence": 7, "attempt": 1, "delivery": 2}
        desk.note("claimed_again", **claimed, submitted=9.5, saves=12)
        desk.note("claimed_again", **claimed, submitted=9.5, saves=None)
        words = [moment.words for moment in desk.life().moments if moment.event == "claimed_again"]
        assert words == [
            "claimed: attempt 1, delivery 2, fence 7; goes on after save 12",
            "claimed: attempt 1, delivery 2, fence 7",
        ]

    def test_store_that_is_away_is_left_alone(self, desk: Desk) -> None:
        """One failure, then no try for some seconds: a hook must not hold a task up."""
        away = Away(clock=lambda: 0.0)
        noting = Trails(away, now=desk.store.now, host="h", size=SIZE, share=1.0)
        noting("retried", RETRIED)
        noting("retried", RETRIED)
        assert away.tries == 1

    def test_hook_with_events_hears_these_only(self) -> None:
        """What it does not want costs nothing: nobody hears it."""
        seen: list[str] = []

        class Hook:
            events = frozenset({"busy"})

            def __call__(self, name: str, _fields: dict[str, Any]) -> None:
                seen.append(name)

        events = Events([Hook()])
        events.emit("busy", **JOB, wait=1.0)
        events.emit("done", **JOB, attempt=1)
        assert seen == ["busy"]
        assert events.hears("busy")
        assert not events.hears("claimed")


def letter(*, life: int, at: float, replays: tuple[Replay, ...] = ()) -> DeadLetter:
    """A letter of the job."""
    envelope = Envelope("shop.charge", f"id-{life}", "[[1], {}, {}]")
    job = Job("charge:1", "declared", 100_000_000)
    made = DeadLetter.of(
        ValueError("<b>no</b> \x1b[31m"), reason="permanent", envelope=envelope, now=at, job=job, life=life, attempts=1
    )
    for replay in replays:
        made = made.with_replay(replay)
    return made


def keep(desk: Desk, one: DeadLetter) -> None:
    """Put a letter into the store."""
    desk.store.keep_letter(one.id, job=one.job, letter=one.to_bytes(), letter_ttl=1e6, letter_max=100)


class TestTelling:
    """What a life is made of."""

    def test_unknown_job_has_no_life(self, desk: Desk) -> None:
        """And costs no guess."""
        assert Explaining(desk.store, outcome=desk.outcomes.get).life("nobody") is None

    def test_waiting_job_is_told_from_the_ledger(self, desk: Desk) -> None:
        """No trail, no record: submitted, and when."""
        header = {"reliable": {"i": "own", "s": 90_000_000, "l": 1}}
        envelope = Envelope("shop.mail", "own", "[[], {}, {}]", options={"headers": header})
        desk.store.submit(Job("own", "own", 90_000_000), task_id="own", envelope=envelope.to_bytes(), ttl=60.0)
        life = desk.life("own")
        assert (life.task, life.state) == ("shop.mail", "waiting")
        assert [(moment.at, moment.event) for moment in life.moments] == [(90.0, "submitted")]

    def test_done_job_is_told_from_the_result(self, desk: Desk) -> None:
        """The backend knows when it ended."""
        desk.outcomes["own"] = Outcome("SUCCESS", 120.0)
        life = desk.life("own")
        assert (life.state, [moment.words for moment in life.moments]) == ("done", ["done"])

    def test_letters_and_replays_are_told_without_a_trail(self, desk: Desk) -> None:
        """In order, found by the first task id, the new one, or the key."""
        replay = Replay("ann@ops", when=150.0, new_id="id-2", published=True)
        keep(desk, letter(life=1, at=140.0, replays=(replay,)))
        keep(desk, letter(life=2, at=160.0))
        for asked in ("charge:1", "id-1", "id-2"):
            events = [(moment.at, moment.event) for moment in desk.life(asked).moments]
            assert events == [(100.0, "submitted"), (140.0, "buried"), (150.0, "letter_replayed"), (160.0, "buried")]

    def test_trail_and_letter_tell_a_burial_once(self, desk: Desk) -> None:
        """The trail has the place, the letter the rest."""
        one = letter(life=1, at=140.0)
        keep(desk, one)
        desk.note("buried", **one.facts())
        assert [moment.event for moment in desk.life().moments].count("buried") == 1

    def test_life_whose_older_lines_have_gone_says_so(self, desk: Desk) -> None:
        """Where they were; else nobody knows why the first failure that is told is the twentieth."""
        for attempt in range(1, 31):
            desk.note("retried", **{**RETRIED, "attempt": attempt})
            said = [moment.event for moment in desk.life().moments]
            assert said.count("left_out") == (said.count("retried") < attempt)
        assert said[0] == "left_out"

    def test_every_event_is_put_into_words(self, desk: Desk) -> None:
        """Also with facts that an older version did not note."""
        for event in sorted(trails.EVENTS):
            desk.note(event, key=event, task_id=event)
            desk.note("stale", key=event, task_id=event)  # what is told with the next one, too
            moment = next(one for one in desk.life(event).moments if one.event == event)
            assert moment.words != event
            assert "{" not in moment.words


PAGE = "https://shop.example/letters?a=1&id=x"


class TestShowing:
    """The screen and the page."""

    @pytest.fixture
    def life(self, desk: Desk) -> Life:
        """A job that failed, with hostile texts in it."""
        keep(desk, letter(life=1, at=140.0))
        desk.note("retried", **{**RETRIED, "error": "<script>alert(1)</script>\x1b[2J"})
        return desk.life()

    def shown(self, life: Life, *, width: int) -> str:
        """Return the screen."""
        output = io.StringIO()
        explain_screens.show(
            Console(file=output, width=width, color_system=None), life, now=200.0, links={life.letters[0]: PAGE}
        )
        return output.getvalue()

    def test_terminal_shows_the_order_and_cannot_be_driven(self, life: Life) -> None:
        """Times count from the first moment; control characters are visible."""
        screen = self.shown(life, width=100)
        assert screen.index("submitted") < screen.index("attempt 2 failed") < screen.index("became dead letter")
        assert "+40.000 s" in screen
        assert f"Letter: {PAGE}" in screen
        assert "\x1b" not in screen

    def test_narrow_terminal_shows_every_word(self, life: Life) -> None:
        """Nothing is cut."""
        words = self.shown(life, width=40).split()
        assert {"submitted", "failed", "permanent"} <= set(words)

    def test_page_is_escaped_and_fetches_nothing(self, life: Life) -> None:
        """Self-contained."""
        page = explain_screens.page(life, now=200.0, links={})
        assert "<script" not in page
        assert "&lt;script&gt;" in page
        assert "\x1b" not in page
        assert "http" not in page.replace("http-equiv", "").replace("(rule http)", "")
        linked = explain_screens.page(life, now=200.0, links={life.letters[0]: PAGE})
        assert f'<dd><a href="{html.escape(PAGE)}">{life.letters[0]}</a></dd>' in linked
