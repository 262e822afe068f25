"""The admin's pages over the store, for a process of the example's Django project."""

from __future__ import annotations

import base64
import json
import re
import time
import uuid
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import django
import pytest
import redis

django.setup()

from django.apps import apps  # noqa: E402  # the apps are there after the setup
from django.conf import settings  # noqa: E402
from django.contrib.admin.models import DELETION, LogEntry  # noqa: E402
from django.contrib.admin.utils import quote  # noqa: E402
from django.contrib.auth.models import Permission, User  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.db import DatabaseError, connection  # noqa: E402
from django.test import Client  # noqa: E402
from django.test.utils import setup_test_environment  # noqa: E402
from django_celery_beat.models import IntervalSchedule, PeriodicTask  # noqa: E402

from celery_reliable.dead_letters import DeadLetter, Filter  # noqa: E402
from celery_reliable.django.admin import batches, choosing  # noqa: E402
from celery_reliable.events import Events  # noqa: E402
from celery_reliable.heartbeats import LifeSign, Process  # noqa: E402
from celery_reliable.payloads import Envelope, RawMessage  # noqa: E402
from celery_reliable.runtime import replaced_runtime, runtime_of  # noqa: E402
from celery_reliable.slots.records import SlotRecord  # noqa: E402
from celery_reliable.stores import open_store  # noqa: E402
from celery_reliable.stores.base import Busy, Job, LetterPage, Run  # noqa: E402
from celery_reliable.stores.memory import MemoryStore  # noqa: E402
from celery_reliable.stores.notes import Write  # noqa: E402

if TYPE_CHECKING:
    from celery_reliable.dead_letters import DeadLetters
    from celery_reliable.django.project import Project
    from celery_reliable.stores.base import Store

LETTERS = "/admin/celery_reliable/deadletter/"
SCRIPT = "<script>alert(1)</script>"
STRANGE = f"{SCRIPT} \udcff \x00 \u202e &amp;"
USERS = {
    "ann": ("view_deadletter", "can_replay", "can_discard", "view_key", "can_release", "view_beatentry"),
    "bob": ("view_deadletter", "view_key", "view_beatentry"),
    "cid": ("view_deadletter", "can_replay"),
    "dan": (),
}


@pytest.fixture(scope="session", autouse=True)
def _site() -> None:
    """Tables and users."""
    setup_test_environment()
    call_command("migrate", verbosity=0)
    for name, permissions in USERS.items():
        user = User.objects.create_user(name, is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    User.objects.create_user("eve")


@pytest.fixture(scope="session")
def project() -> Project:
    """The project's app and store."""
    found: Project = apps.get_app_config("celery_reliable").project
    return found


@pytest.fixture
def letters(project: Project) -> DeadLetters:
    """The service behind the pages."""
    return project.letters


@pytest.fixture
def queue() -> str:
    """A queue that no other test uses; letters are found by it."""
    return f"q{uuid.uuid4().hex[:10]}"


def client_of(name: str, **options: Any) -> Client:
    """Return a browser in which a user is logged in."""
    client = Client(**options)
    client.force_login(User.objects.get(username=name))
    return client


@pytest.fixture
def ann() -> Client:
    """Somebody who may do everything."""
    return client_of("ann")


def bury(project: Project, queue: str, *orders: str, **changes: Any) -> list[str]:
    """Keep a letter for each order, the first one first; return their ids."""
    return [keep(project.store, letter_of(project, queue, order, **changes)) for order in orders]


def letter_of(project: Project, queue: str, order: str, **changes: Any) -> DeadLetter:
    """Make the letter of one order's charge."""
    task = changes.pop("task", "webshop.charge")
    body = json.dumps([[order], changes.pop("kwargs", {"card": "0002"}), {}])
    call = Envelope(task, str(uuid.uuid4()), body, options={"queue": queue})
    error = changes.pop("error", ValueError("the card was declined"))
    given = {"reason": "permanent", "now": project.store.now() / 1e6, "attempts": 1, **changes}
    job = Job(f"{queue}:{ascii(order)[1:-1]}", "declared")
    return DeadLetter.of(error, envelope=call, job=job, life=1, **given)


def keep(store: Store, letter: DeadLetter) -> str:
    """Keep it."""
    store.keep_letter(letter.id, job=letter.job, letter=letter.to_bytes(), letter_ttl=86_400, letter_max=1_000_000)
    return letter.id


def waiting(queue: str) -> list[Any]:
    """Return the arguments of the messages in a queue of the broker, oldest first."""
    with redis.Redis.from_url(settings.CELERY_BROKER_URL) as broker:
        messages = [json.loads(raw) for raw in reversed(broker.lrange(queue, 0, -1))]
    return [json.loads(base64.b64decode(message["body"]))[:2] for message in messages]


def shown(answer: Any) -> list[str]:
    """Return the first arguments of the listed calls."""
    return re.findall(r'<div class="reliable-call">\("([^"]+)"', unescape(answer.content.decode()))


def token_of(answer: Any) -> str:
    """Return the batch that a page carries."""
    found = re.search(r'name="batch" value="([^"]+)"', answer.content.decode())
    assert found, answer.content.decode()
    return found[1]


def choose(client: Client, action: str, *ids: str, **more: str) -> Any:
    """Choose letters in the list, and an action."""
    return client.post(f"{LETTERS}ask/", {"action": action, "selected": ids, **more})


def run(client: Client, answer: Any, **more: str) -> Any:
    """Say yes, and go on until the batch is finished; return the last page."""
    while 'name="batch"' in (page := answer.content.decode()):
        answer = client.post(f"{LETTERS}run/", {"batch": token_of(answer), **more})
        assert "Stopped" not in page
    return answer


def count_in(answer: Any) -> str:
    """Return the line that says how far a batch is."""
    found = re.search(r'<p class="reliable-count">(.*?)</p>', answer.content.decode(), re.DOTALL)
    assert found
    return " ".join(re.sub("<[^>]+>", "", found[1]).split())


def log_of(letter_id: str) -> list[tuple[str, str]]:
    """Return the log's lines about a letter as (user, text), oldest first."""
    entries = LogEntry.objects.filter(object_id=letter_id).order_by("pk")
    return [(entry.user.get_username(), entry.change_message) for entry in entries]


# --- list


FILTERS: list[tuple[dict[str, str], list[str]]] = [
    ({}, ["new", "slow", "old"]),
    ({"task": "webshop.rep*"}, ["slow"]),
    ({"reason": "exhausted"}, ["slow"]),
    ({"error": "Timeout*"}, ["slow"]),
    ({"text": "OLD"}, ["old"]),
    ({"since": "1h"}, ["new", "slow"]),
    ({"status": "replayed"}, []),
    ({"task": "webshop.report", "since": "24h", "reason": "permanent"}, []),
]


@pytest.fixture
def three(project: Project, queue: str) -> list[str]:
    """Three letters that differ."""
    day_ago = project.store.now() / 1e6 - 90_000
    [old] = bury(project, queue, "old", now=day_ago)
    [slow] = bury(project, queue, "slow", task="webshop.report", reason="exhausted", error=TimeoutError("too slow"))
    return [old, slow, *bury(project, queue, "new")]


def test_filters_find_what_fits(ann: Client, queue: str, three: list[str]) -> None:
    """By task, reason, error type, text, time, status and queue, alone and together, newest first."""
    for given, expected in FILTERS:
        assert shown(ann.get(LETTERS, {"queue": queue, **given})) == expected, given


def test_a_wrong_filter_shows_nothing_and_says_so(ann: Client, queue: str, three: list[str]) -> None:
    """Instead of everything."""
    answer = ann.get(LETTERS, {"queue": queue, "reason": "nonsense"})
    assert shown(answer) == []
    assert "nonsense is not one of the available choices" in answer.content.decode()


def test_groups_count_one_error_in_one_place(ann: Client, queue: str, three: list[str], letters: DeadLetters) -> None:
    """And lead to the list of their letters."""
    page = ann.get(f"{LETTERS}groups/", {"queue": queue}).content.decode()
    groups = letters.groups(Filter(queue=queue))
    assert sorted(group.count for group in groups) == [1, 2]
    assert all(group.fingerprint in page for group in groups)
    address = re.search(rf'href="([^"]+group={groups[0].fingerprint})"', page)
    assert address
    assert shown(ann.get(unescape(address[1]))) == ["new", "old"]


def test_pages_hold_each_letter_once_while_letters_come(ann: Client, project: Project, queue: str) -> None:
    """The address of the next page names a place, not a number of letters to pass over."""
    bury(project, queue, *(f"o{number:03}" for number in range(230)))
    page = ann.get(LETTERS, {"queue": queue})
    found = shown(page)
    while older := re.search(r'href="([^"]+)" id="reliable-older"', page.content.decode()):
        bury(project, queue, "later")
        page = ann.get(LETTERS + unescape(older[1]))
        found += shown(page)
    assert found == [f"o{number:03}" for number in reversed(range(230))]


def test_a_page_costs_one_page_of_the_store(ann: Client, project: Project, queue: str) -> None:
    """However many letters there are: no count of rows, no read of the rest."""
    store = Counting()
    for number in range(1_000):
        keep(store, letter_of(project, queue, f"o{number}"))
    with replaced_runtime(project.app, store=store, events=runtime_of(project.app).events):
        assert len(shown(ann.get(LETTERS))) == choosing.PAGE_SIZE
    assert store.asked == [choosing.PAGE_SIZE]


class Counting(MemoryStore):
    """A store that notes which pages of letters it was asked for."""

    def __init__(self) -> None:
        """Begin empty."""
        super().__init__()
        self.asked: list[int] = []

    def letters(self, cursor: str = "", *, limit: int = 500, **wanted: Any) -> LetterPage:
        """Note it."""
        self.asked.append(limit)
        return super().letters(cursor, limit=limit, **wanted)


def test_looking_for_a_rare_letter_ends_in_time(project: Project, queue: str) -> None:
    """A page then has what was found so far, and where to go on."""
    store = Counting()
    for number in range(500):
        keep(store, letter_of(project, queue, f"o{number}"))
    with replaced_runtime(project.app, store=store, events=runtime_of(project.app).events):
        found = choosing.look(project.letters, Filter(text="o0"), "", enough=100, seconds=0.0)
    assert (found.letters, found.looked, store.asked) == ((), choosing.PAGE_SIZE, [choosing.PAGE_SIZE])
    assert found.cursor


def test_a_made_up_cursor_begins_at_the_newest(ann: Client, queue: str, three: list[str]) -> None:
    """An address is what anybody may type."""
    for after in ("x", "-1", "9" * 40, "1 OR 1=1", "\u0663"):
        assert shown(ann.get(LETTERS, {"queue": queue, "after": after})) == ["new", "slow", "old"]


# --- what is shown


def test_nothing_of_a_letter_is_taken_for_markup(ann: Client, project: Project, queue: str) -> None:
    """Payload, stack, queue, task, key and evidence may hold anything, non-UTF-8 from a file included."""
    try:
        int(STRANGE)
    except ValueError as exc:
        letter = letter_of(
            project, queue, STRANGE, error=exc, evidence=[STRANGE], tenant=STRANGE, task="webshop.x" + SCRIPT
        )
    keep(project.store, letter)
    pages = [
        ann.get(LETTERS, {"queue": queue}),
        ann.get(f"{LETTERS}groups/", {"queue": queue}),
        ann.get(f"{LETTERS}{letter.id}/change/"),
        ann.get(f"{LETTERS}{letter.id}/edit/"),
        choose(ann, "discard", letter.id),
        run(ann, choose(ann, "dry_run", letter.id)),
        run(ann, choose(ann, "replay", letter.id)),
        ann.get(f"{LETTERS}{letter.id}/change/"),
        ann.get("/admin/"),
        ann.get(LETTERS, {"text": SCRIPT, "task": SCRIPT, "reason": SCRIPT, "group": SCRIPT}),
    ]
    for page in pages:
        assert page.status_code == 200
        assert SCRIPT not in page.content.decode()
    detail = unescape(pages[2].content.decode())
    assert r"\udcff" in detail
    assert r"\x00" in detail
    assert r"\u202e" in detail


def test_a_letter_shows_call_stack_and_history(ann: Client, project: Project, queue: str) -> None:
    """What an operator asks."""
    try:
        int("the bank is silent")
    except ValueError as exc:
        [letter_id] = bury(project, queue, "A-1", error=exc, attempts=3, first_failure=1.0, evidence=['{"signal": 9}'])
    page = unescape(ann.get(f"{LETTERS}{letter_id}/change/").content.decode())
    for text in (
        "A-1",
        '"card": "0002"',
        "the bank is silent",
        "Traceback",
        "3 attempts",
        f"{queue}:A-1",
        "signal",
        "1970",
    ):
        assert text in page


def test_the_address_in_the_guides_is_that_of_the_page(ann: Client, project: Project, queue: str) -> None:
    """What ``reliable_letter_url`` is to be; this site's own."""
    guides = [Path(__file__).parents[3] / "docs" / "how-to" / name for name in ("django.md", "alerts.md")]
    [letter_id] = bury(project, queue, "order 1")
    for guide in guides:
        [address] = re.findall(r'reliable_letter_url = "https://shop\.example(\S*)"', guide.read_text("utf-8"))
        assert ann.get(address.replace("{letter_id}", letter_id)).status_code == 200


def test_messages_that_no_one_could_read_are_shown(ann: Client, project: Project, queue: str) -> None:
    """Bytes as bytes; there are no arguments to edit."""
    raw = RawMessage(queue=queue, body="/wAB", content_type="application/x-python-serialize")
    now = project.store.now() / 1e6
    letter = DeadLetter.of(None, reason="undecodable", envelope=None, now=now, raw=raw, letter_id=queue, message="no")
    keep(project.store, letter)
    page = ann.get(f"{LETTERS}{letter.id}/change/").content.decode()
    assert r"\xff\x00\x01" in page
    assert "Edit and replay" not in page
    assert ann.get(f"{LETTERS}{letter.id}/edit/").status_code == 302
    refused = run(ann, choose(ann, "replay", letter.id))
    assert "no_body" in refused.content.decode()


def test_a_letter_that_is_gone_leaves_its_history(ann: Client, project: Project, queue: str) -> None:
    """The link in the log leads somewhere."""
    [letter_id] = bury(project, queue, "A-1")
    run(ann, choose(ann, "discard", letter_id))
    answer = ann.get(f"{LETTERS}{letter_id}/change/")
    assert answer.status_code == 404
    assert "Discarded." in answer.content.decode()
    assert "ann" in answer.content.decode()


# --- replay and discard


def test_chosen_letters_are_replayed_and_logged(
    ann: Client, project: Project, queue: str, letters: DeadLetters
) -> None:
    """Asked first, each under a new id, and a second time refused."""
    first, second, third = bury(project, queue, "A-1", "A-2", "A-3")
    asked = choose(ann, "replay", first, second)
    assert "Replay 2 dead letters?" in asked.content.decode()
    assert waiting(queue) == []
    done = run(ann, asked)
    assert "Finished." in done.content.decode()
    assert waiting(queue) == [[["A-1"], {"card": "0002"}], [["A-2"], {"card": "0002"}]]
    assert [letters.show(one).status for one in (first, second, third)] == ["replayed", "replayed", "dead"]  # type: ignore[union-attr]
    new_id = letters.show(first).replays[0].new_id  # type: ignore[union-attr]
    assert log_of(first) == [("ann", f"Replayed as task {new_id}.")]
    again = run(ann, choose(ann, "replay", first))
    assert "was replayed by ann already" in again.content.decode()
    assert len(waiting(queue)) == 2
    assert log_of(first)[1][1].startswith("Replay refused:")


def test_everything_that_fits_is_replayed_and_nothing_else(ann: Client, project: Project, queue: str) -> None:
    """Beyond the page; what dies again while it runs is not taken in."""
    bury(project, queue, *(f"o{number}" for number in range(105)))
    bury(project, queue, "other", reason="poison")
    asked = choose(ann, "replay", everything="on", query=f"queue={queue}&reason=permanent")
    bury(project, queue, "later")
    done = run(ann, asked)
    assert "105" in count_in(done)
    assert {args[0] for args, _ in waiting(queue)} == {f"o{number}" for number in range(105)}
    assert shown(ann.get(LETTERS, {"queue": queue})) == ["later", "other"]


def test_a_dry_run_changes_nothing(ann: Client, project: Project, queue: str, letters: DeadLetters) -> None:
    """And says what would be refused, and why."""
    good, misfit = bury(project, queue, "A-1")[0], bury(project, queue, "A-2", kwargs={"colour": "red"})[0]
    page = run(ann, choose(ann, "dry_run", good, misfit)).content.decode()
    assert "would be replayed" in page
    assert "unexpected keyword argument" in unescape(page)
    assert waiting(queue) == []
    assert letters.show(good).status == "dead"  # type: ignore[union-attr]
    assert log_of(good) == []


def test_force_replays_what_this_site_could_not_run(ann: Client, project: Project, queue: str) -> None:
    """Only when it is ticked."""
    [letter_id] = bury(project, queue, "A-1", task="webshop.unknown")
    assert "no_task" in run(ann, choose(ann, "replay", letter_id)).content.decode()
    assert waiting(queue) == []
    run(ann, choose(ann, "replay", letter_id), force="on")
    assert len(waiting(queue)) == 1


def test_sign_replays_what_nobody_is_known_to_have_signed(ann: Client, project: Project, queue: str) -> None:
    """Only when it is ticked, one edited letter or many; a site that does not sign has no such box."""
    first, second = bury(project, queue, "A-1", "A-2")
    edit, given = f"{LETTERS}{second}/edit/", {"args": '["A-3"]', "kwargs": "{}"}
    assert "Sign" not in ann.get(edit).content.decode() + choose(ann, "replay", first).content.decode()
    project.app.conf.reliable_signing_keys = ["k" * 32]
    try:
        with replaced_runtime(project.app, store=project.store, events=Events()):
            asked = choose(ann, "replay", first)
            assert 'name="sign"' in asked.content.decode()
            assert "unsigned" in run(ann, asked).content.decode()
            assert "would be signed by us" in unescape(ann.post(edit, given).content.decode())
            assert waiting(queue) == []
            run(ann, choose(ann, "replay", first), sign="on")
            ann.post(edit, {**given, "sign": "on"})
            assert [args for args, _ in waiting(queue)] == [["A-1"], ["A-3"]]
    finally:
        project.app.conf.reliable_signing_keys = None


def test_a_discard_is_logged_as_a_deletion(ann: Client, project: Project, queue: str, letters: DeadLetters) -> None:
    """One that is gone by then is said to be."""
    [letter_id] = bury(project, queue, "A-1")
    asked = choose(ann, "discard", letter_id)
    run(ann, asked)
    assert letters.show(letter_id) is None
    assert log_of(letter_id) == [("ann", "Discarded.")]
    assert LogEntry.objects.get(object_id=letter_id).action_flag == DELETION
    assert "was gone already" in run(ann, asked).content.decode()


def test_an_edited_call_is_replayed_and_the_original_kept(
    ann: Client, project: Project, queue: str, letters: DeadLetters
) -> None:
    """What is no JSON, or does not fit the task, changes nothing."""
    [letter_id] = bury(project, queue, "A-1", kwargs={"card": "0002", "seconds": 1})
    address = f"{LETTERS}{letter_id}/edit/"
    for args, kwargs, text in [
        ("[", "{}", "This is no JSON"),
        ("{}", "{}", "Expected a JSON list"),
        ('["A-1"]', "[]", "Expected a JSON object"),
        ('["A-1"]', '{"seconds": NaN}', "NaN"),
        ("[" * 100_000, "{}", "This is no JSON"),
        ('["A-1"]', '{"colour": "red"}', "unexpected keyword argument"),
    ]:
        answer = ann.post(address, {"args": args, "kwargs": kwargs})
        assert text in unescape(answer.content.decode()), text
    assert waiting(queue) == []
    # 1 and true are one value in Python, and two in JSON.
    answer = ann.post(address, {"args": '["A-1"]', "kwargs": '{"card": "0002", "seconds": true}'}, follow=True)
    assert "Replayed with other arguments" in answer.content.decode()
    assert json.dumps(waiting(queue)) == '[[["A-1"], {"card": "0002", "seconds": true}]]'
    letter = letters.show(letter_id)
    assert letter is not None
    assert letter.original is not None
    assert '"seconds": 1' in letter.original.body
    assert log_of(letter_id)[-1][1] == f"Replayed with other arguments as task {letter.replays[0].new_id}."
    assert "before it was edited" in answer.content.decode()


def test_hidden_arguments_are_on_no_page_and_stay_when_they_are_not_edited(
    ann: Client, project: Project, queue: str
) -> None:
    """``reliable_redact``: an empty field means that the stored arguments are sent."""
    project.app.conf.reliable_redact = without_cards
    try:
        with replaced_runtime(project.app, store=project.store, events=Events()):
            [letter_id] = bury(project, queue, "A-1", kwargs={"card": "4111", "seconds": 1})
            edit = f"{LETTERS}{letter_id}/edit/"
            pages = [ann.get(page) for page in (f"{LETTERS}?queue={queue}", f"{LETTERS}{letter_id}/change/", edit)]
            texts = [page.content.decode() for page in pages]
            assert not [text for text in texts if "4111" in text]
            assert "A-1" in texts[0]
            assert "reliable_redact" in texts[2]
            ann.post(edit, {"args": '["A-2"]', "kwargs": ""})
            assert waiting(queue) == [[["A-2"], {"card": "4111", "seconds": 1}]]
            history = ann.get(f"{LETTERS}{letter_id}/change/").content.decode()
            assert "before it was edited" in history
            assert "4111" not in history
    finally:
        project.app.conf.reliable_redact = None


def without_cards(_task: str, args: Any, kwargs: Any) -> Any:
    """Hide cards."""
    return args, {name: "***" if name == "card" else value for name, value in kwargs.items()}


# --- who may


def test_who_may_only_look_can_change_nothing(project: Project, queue: str, letters: DeadLetters) -> None:
    """Neither by the pages' own forms, which are not there, nor by requests of their own."""
    [letter_id] = bury(project, queue, "A-1")
    bob, cid = client_of("bob"), client_of("cid")
    for page in (bob.get(LETTERS, {"queue": queue}), bob.get(f"{LETTERS}{letter_id}/change/")):
        assert page.status_code == 200
        assert 'value="replay"' not in page.content.decode()
        assert 'value="discard"' not in page.content.decode()
    for action in ("replay", "dry_run", "discard"):
        assert choose(bob, action, letter_id).status_code == 403
    assert bob.post(f"{LETTERS}{letter_id}/edit/", {"args": "[]", "kwargs": "{}"}).status_code == 403
    assert choose(cid, "discard", letter_id).status_code == 403
    assert 'value="discard"' not in cid.get(LETTERS, {"queue": queue}).content.decode()
    assert letters.show(letter_id).status == "dead"  # type: ignore[union-attr]
    assert log_of(letter_id) == []


def test_who_may_not_look_sees_nothing(project: Project, queue: str) -> None:
    """A member of the staff without the permission, a user who is none, and a stranger."""
    [letter_id] = bury(project, queue, "A-1")
    for address in (LETTERS, f"{LETTERS}groups/", f"{LETTERS}{letter_id}/change/", f"{LETTERS}{letter_id}/edit/"):
        assert client_of("dan").get(address).status_code == 403
        for client in (client_of("eve"), Client()):
            answer = client.get(address)
            assert (answer.status_code, answer["Location"].split("?")[0]) == (302, "/admin/login/")
    assert "celery_reliable" not in client_of("dan").get("/admin/").content.decode()


def test_a_forged_form_changes_nothing(project: Project, queue: str, letters: DeadLetters) -> None:
    """No CSRF token, a batch of another user, and one that nobody signed."""
    [letter_id] = bury(project, queue, "A-1")
    token = token_of(choose(client_of("ann"), "discard", letter_id))
    forged = client_of("ann", enforce_csrf_checks=True)
    assert choose(forged, "discard", letter_id).status_code == 403
    assert forged.post(f"{LETTERS}run/", {"batch": token}).status_code == 403
    assert forged.post(f"{LETTERS}{letter_id}/edit/", {"args": "[]", "kwargs": "{}"}).status_code == 403
    of_ann = token_of(choose(client_of("ann"), "replay", letter_id))
    assert client_of("cid").post(f"{LETTERS}run/", {"batch": of_ann}).status_code == 403
    assert client_of("ann").post(f"{LETTERS}run/", {"batch": token + "x"}).status_code == 400
    assert client_of("ann").post(f"{LETTERS}ask/", {"action": "format", "selected": letter_id}).status_code == 400
    assert client_of("ann").get(f"{LETTERS}run/", {"batch": token}).status_code == 302
    assert letters.show(letter_id).status == "dead"  # type: ignore[union-attr]


def test_a_permission_that_is_taken_away_stops_a_batch(project: Project, queue: str, letters: DeadLetters) -> None:
    """Each step asks anew."""
    [letter_id] = bury(project, queue, "A-1")
    token = token_of(choose(client_of("cid"), "replay", letter_id))
    permission = Permission.objects.get(codename="can_replay")
    cid = User.objects.get(username="cid")
    cid.user_permissions.remove(permission)
    try:
        assert client_of("cid").post(f"{LETTERS}run/", {"batch": token}).status_code == 403
    finally:
        cid.user_permissions.add(permission)
    assert letters.show(letter_id).status == "dead"  # type: ignore[union-attr]


# --- what may break


class Broken(MemoryStore):
    """A store that raises what nobody expects at the second discard."""

    def discard(self, letter_id: str, job: Job | None) -> bool:
        """Drop the first one only."""
        if self.letter_counts()["discarded"]:
            raise ZeroDivisionError
        return super().discard(letter_id, job)


def test_the_log_keeps_what_was_done_before_a_crash(project: Project, queue: str) -> None:
    """Though the site runs with ATOMIC_REQUESTS: what is done in the store is not undone with the request."""
    assert settings.DATABASES["default"]["ATOMIC_REQUESTS"]
    store = Broken()
    first, second = (keep(store, letter_of(project, queue, order)) for order in ("A-1", "A-2"))
    client = client_of("ann", raise_request_exception=False)
    with replaced_runtime(project.app, store=store, events=runtime_of(project.app).events):
        asked = choose(client, "discard", first, second)
        assert client.post(f"{LETTERS}run/", {"batch": token_of(asked)}).status_code == 500
    assert log_of(first) == [("ann", "Discarded.")]
    assert log_of(second) == [("ann", "Discard asked for.")]


def test_what_cannot_be_logged_is_not_done(ann: Client, project: Project, queue: str, letters: DeadLetters) -> None:
    """The project's database has become read-only."""
    [letter_id] = bury(project, queue, "A-1")
    asked = choose(ann, "discard", letter_id)
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA query_only = 1")
    try:
        with pytest.raises(DatabaseError, match="readonly"):
            run(ann, asked)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA query_only = 0")
    assert letters.show(letter_id) is not None


def test_a_broker_that_is_away_stops_a_batch_which_goes_on_later(
    ann: Client, project: Project, queue: str, letters: DeadLetters
) -> None:
    """Nothing is lost, nothing doubled, and the log says what is not known."""
    first, second = bury(project, queue, "A-1", "A-2")
    asked = choose(ann, "replay", first, second)
    with broker_away(project):
        stopped = ann.post(f"{LETTERS}run/", {"batch": token_of(asked)})
    assert stopped.status_code == 503
    assert "Stopped" in stopped.content.decode()
    assert log_of(first)[0][1].startswith("Replay not known to be done:")
    assert letters.show(first).status == "replaying"  # type: ignore[union-attr]
    assert "Finished." in ann.post(f"{LETTERS}run/", {"batch": token_of(stopped)}).content.decode()
    assert [args for args, _ in waiting(queue)] == [["A-1"], ["A-2"]]


class broker_away:  # noqa: N801  # a context manager, read as a word
    """Send what is published to a port where nobody listens."""

    def __init__(self, project: Project) -> None:
        """Take the app."""
        self._app = project.app

    def __enter__(self) -> None:
        """Turn the app away from its broker."""
        self._turn("redis://127.0.0.1:1/0")

    def __exit__(self, *_: object) -> None:
        """And back."""
        self._turn(settings.CELERY_BROKER_URL)

    def _turn(self, url: str) -> None:
        self._app._pool = None
        self._app.amqp._producer_pool = None
        self._app.conf.broker_write_url = url
        self._app.conf.task_publish_retry = False


def test_a_store_that_is_away_is_a_page(ann: Client, project: Project) -> None:
    """It says which setting is meant, with status 503."""
    store = open_store("redis://127.0.0.1:1/0")
    with replaced_runtime(project.app, store=store, events=runtime_of(project.app).events):
        answer = ann.get(LETTERS)
    assert answer.status_code == 503
    assert "127.0.0.1:1" in answer.content.decode()


def test_a_step_ends_after_a_second(project: Project, queue: str) -> None:
    """So that no request outlives its server's patience; the rest is still to be done."""
    batch = batches.Batch(action="discard", user="1", pending=("a", "b", "c"))
    after, _ = batches.step(batch, project.letters, lambda _: time.sleep(batches.STEP / 2 + 0.01))
    assert (after.done, after.pending, after.finished) == (2, ("c",), False)
    assert batches.Batch.from_signed(after.signed()) == after


# --- keys and leases

KEYS = "/admin/celery_reliable/key/"
CLAIM: dict[str, Any] = {"life": 1, "ttl": 600.0, "max_deliveries": 5, "record_ttl": 600.0}


@pytest.fixture
def held(project: Project, queue: str) -> Job:
    """A job with a strange key that runs under a lease."""
    job = Job(f"{queue} {SCRIPT}", "declared")
    project.store.submit(job, task_id=f"id-{queue}", ttl=600.0)
    assert isinstance(project.store.claim(job, task_id=f"id-{queue}", token=f"owner-{queue}.1", **CLAIM), Run)
    return job


def test_a_key_shows_state_and_holder(ann: Client, project: Project, held: Job, queue: str) -> None:
    """And whether the holder's worker gives signs of life; nothing of it is markup."""
    page = ann.get(KEYS, {"q": held.key}).content.decode()
    assert SCRIPT not in page
    assert f"owner-{queue}.1" in page
    assert "running" in page
    assert "no worker of that name gives a sign of life" in page
    sign(project, owner=f"owner-{queue}")
    page = ann.get(KEYS, {"q": held.key}).content.decode()
    assert "the job may be running" in page
    assert f"node-owner-{queue}" in page


def sign(project: Project, *, owner: str) -> None:
    """Give a worker's sign of life."""
    given: dict[str, Any] = {"role": "worker", "state": "busy", "clock": 1.0, "interval": 5.0, "running": 1}
    one = LifeSign(node=f"node-{owner}", owner=owner, process=Process.current(), at=time.time(), **given)
    project.store.notes.write("workers", [Write(name=owner, value=one.to_json().encode(), ttl=60.0)])


def test_a_task_id_is_found_by_its_submission(ann: Client, project: Project, queue: str) -> None:
    """On Redis, too, where an id alone does not say where its record lies."""
    stamp = project.store.now()
    job = Job(queue, "own", stamp)
    header = {"i": queue, "s": stamp, "l": 1}
    call = Envelope("webshop.charge", queue, "[[1], {}, {}]", options={"headers": {"reliable": header}})
    project.store.submit(job, task_id=queue, envelope=call.to_bytes(), ttl=600.0)
    assert "waiting" in ann.get(KEYS, {"q": queue}).content.decode()
    assert isinstance(project.store.claim(job, task_id=queue, token="t.1", **CLAIM), Run)
    page = ann.get(KEYS, {"q": queue}).content.decode()
    assert "running" in page
    assert "t.1" in page
    assert "Nothing is known" in ann.get(KEYS, {"q": f"{queue}?"}).content.decode()


def test_a_released_lease_may_be_claimed_at_once(ann: Client, project: Project, held: Job, queue: str) -> None:
    """With a line in the log, and the loss counted; the claim that lost it cannot be released again."""
    given = {"q": held.key, "holder": f"owner-{queue}.1"}
    page = ann.post(f"{KEYS}release/", given, follow=True).content.decode()
    assert "Released." in page
    assert log_of(held.key) == [("ann", f"Released from owner-{queue}.1.")]
    again = project.store.claim(held, task_id=f"id-{queue}", token="next.1", **CLAIM)
    assert isinstance(again, Run)
    assert again.delivery == 2
    assert "Not released" in ann.post(f"{KEYS}release/", given, follow=True).content.decode()
    assert project.store.inspect(held)["holder"] == "next.1"


def test_only_who_may_releases(project: Project, held: Job, queue: str) -> None:
    """And only with a token against forgery."""
    given = {"q": held.key, "holder": f"owner-{queue}.1"}
    bob = client_of("bob")
    assert "Release" not in bob.get(KEYS, {"q": held.key}).content.decode()
    assert bob.post(f"{KEYS}release/", given).status_code == 403
    assert client_of("ann", enforce_csrf_checks=True).post(f"{KEYS}release/", given).status_code == 403
    assert client_of("cid").get(KEYS).status_code == 403
    assert isinstance(project.store.claim(held, task_id=f"id-{queue}", token="next.1", **CLAIM), Busy)


# --- beat

ENTRIES = "/admin/celery_reliable/beatentry/"
NOW = 1_790_000_000_000_000


def test_entries_show_policy_slots_and_why_they_did_not_run(ann: Client, project: Project, queue: str) -> None:
    """Policies come from the row's headers; a wrong one is said; a link leads to django-celery-beat's own page."""
    every_hour = IntervalSchedule.objects.create(every=1, period="hours")
    given = {"reliable_catch_up": "skip", "reliable_overlap": "forbid"}
    headers = json.dumps({**given, "reliable_start_deadline": "soon"})
    row = PeriodicTask.objects.create(
        name=f"{queue} {SCRIPT}", interval=every_hour, headers=headers, task="webshop.report"
    )
    now = project.store.now()
    record = SlotRecord("v", now - 60_000_000, task="webshop.report", schedule=SCRIPT, following=now + 3_540_000_000)
    record = record.claimed(now - 60_000_000, epoch=1, at=now, following=record.following, missed=NOW)
    record = record.dropped("superseded", at=now)
    project.store.notes.write("beat.slots", [Write(name=row.name, value=record.to_bytes(), ttl=60.0)])
    pages = [ann.get(ENTRIES), ann.get(f"{ENTRIES}{quote(row.name)}/change/")]
    for page in pages:
        assert SCRIPT not in page.content.decode()
        assert "catch up: skip, overlap: forbid" in page.content.decode()
    assert "No beat leads" in pages[0].content.decode()
    detail = unescape(pages[1].content.decode())
    for text in (
        "reliable_start_deadline",
        "passed over",
        "was dropped: the broker refused it until a later slot was due",
        f"/admin/django_celery_beat/periodictask/{row.pk}/",
    ):
        assert text in detail, text
    assert ann.get(f"{ENTRIES}nobody/change/").status_code == 404
    assert client_of("cid").get(ENTRIES).status_code == 403


def test_an_entry_of_the_settings_has_its_policy_too(ann: Client, project: Project) -> None:
    """From its own headers in beat_schedule; what is wrong there is said, and does not hold."""
    name = "hourly"
    headers = {"reliable_catch_up": "all", "reliable_overlap": "never"}
    entry = {"task": "webshop.report", "schedule": 3600.0, "options": {"headers": headers}}
    record = SlotRecord("v", NOW, task="webshop.report", absent=0)
    project.store.notes.write("beat.slots", [Write(name=name, value=record.to_bytes(), ttl=60.0)])
    before = project.app.conf.beat_schedule
    project.app.conf.beat_schedule = {**before, name: entry}
    try:
        page = ann.get(f"{ENTRIES}{name}/change/").content.decode()
        assert "catch up: all, within 1d<" in page
        assert "reliable_overlap: expected" in page
    finally:
        project.app.conf.beat_schedule = before


# --- Django's own tools


def test_the_models_need_no_tables() -> None:
    """No migration is missing, and a dump asks no table that is not there."""
    call_command("makemigrations", "celery_reliable", check=True, dry_run=True, verbosity=0)
    call_command("dumpdata", "celery_reliable", verbosity=0)
    call_command("dumpdata", "celery_reliable", verbosity=0, use_base_manager=True)
