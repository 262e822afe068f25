"""``celery reliable dlq`` against a real Redis, with real workers and operators that are killed."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import uuid
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from celery_reliable.cli import reliable
from celery_reliable.cli.options import duration, rate
from celery_reliable.dead_letters import DeadLetter, Reason
from celery_reliable.payloads import Envelope
from celery_reliable.stores import open_store
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_reliable.stores.base import Store
    from tests.integration.workers import Workers

pytestmark = [pytest.mark.integration]

ROOT = Path(__file__).resolve().parents[2]
ANSI = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")

SHOP = '''
"""A shop whose charges fail until somebody fixes the card processor."""

import os
from pathlib import Path

from celery import Celery
from celery_reliable import ReliableTask

app = Celery("shop", broker=os.environ["SHOP_REDIS"], backend=os.environ["SHOP_REDIS"])
app.config_from_object("celery_reliable.presets")
HERE = Path(__file__).parent


@app.task(shared=False, base=ReliableTask, name="shop.charge", idempotency_key="charge:{order}")
def charge(order, currency="EUR"):
    if not (HERE / "fixed").exists():
        raise ValueError(f"card of order {order} was declined: \\x1b[31mdo not honour\\x1b[0m")
    with (HERE / "charged").open("a") as ledger:
        ledger.write(f"{order} {currency}\\n")


if not (HERE / "without-mail").exists():

    @app.task(shared=False, base=ReliableTask, name="shop.mail", queue="mails")
    def mail(to, text="Grüße"):
        raise ValueError(f"no mailbox {to}")
'''

SUBMIT = """
import sys, shop
for order in range(int(sys.argv[1])):
    shop.charge.delay(order)
"""


class Shop:
    """The shop's project folder, its store, and the commands of its operators."""

    def __init__(self, folder: Path, *, redis_url: str, store: Store) -> None:
        """Write the project."""
        self.folder = folder
        self.store = store
        paths = [str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")]
        self.environment = {**os.environ, "SHOP_REDIS": redis_url, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        self.environment |= {"LOGNAME": "ann", "TERM": "xterm"}
        self.environment.pop("COLUMNS", None)
        self.environment.pop("NO_COLOR", None)
        (folder / "shop.py").write_text(SHOP)

    def submit(self, orders: int) -> None:
        """Submit charges of orders 0, 1, 2 ..."""
        subprocess.run([sys.executable, "-c", SUBMIT, str(orders)], cwd=self.folder, env=self.environment, check=True)

    def command(self, *words: str) -> list[str]:
        """Return the command line of ``dlq``."""
        return [sys.executable, "-m", "celery", "-A", "shop", "reliable", "dlq", *words]

    def dlq(self, *words: str, code: int = 0) -> str:
        """Run ``dlq`` without a terminal; return what it prints on standard output."""
        done = subprocess.run(
            self.command(*words),
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout if code == 0 else done.stdout + done.stderr

    def records(self, *words: str, code: int = 0) -> list[dict[str, Any]]:
        """Run ``dlq --json``; every line of standard output must be JSON."""
        return [json.loads(line) for line in self.dlq(*words, "--json", code=code).splitlines()]

    def start(self, *words: str, user: str = "ann") -> subprocess.Popen[bytes]:
        """Start ``dlq`` as one operator and do not wait."""
        environment = {**self.environment, "LOGNAME": user}
        return subprocess.Popen(
            self.command(*words),
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def count(self, name: str) -> int:
        """Return one of the store's counts of letters."""
        return self.store.letter_counts()[name]

    def charged(self) -> Counter[str]:
        """Return how often each order was charged."""
        path = self.folder / "charged"
        return Counter(path.read_text().split("\n")[:-1] if path.exists() else [])

    def fix(self) -> None:
        """Make charges succeed from now on."""
        (self.folder / "fixed").touch()

    def keep(self, orders: int, *, first: int = 0, reason: Reason = "permanent", queue: str = "celery") -> None:
        """Keep letters of ``orders`` charges that failed an hour ago."""
        for order in range(first, first + orders):
            call = Envelope("shop.charge", str(uuid.uuid4()), json.dumps([[order], {}]), options={"queue": queue})
            now = self.store.now() / 1e6 - 3600
            error = ValueError(f"card of order {order} was declined")
            letter = DeadLetter.of(error, reason=reason, envelope=call, now=now, attempts=1)
            self.store.keep_letter(
                letter.id, letter=letter.to_bytes(), label=letter.label, letter_ttl=86_400.0, letter_max=1_000
            )

    def kill_dead(self, orders: int, *, workers: Workers) -> None:
        """Let a real worker bury ``orders`` charges; it stays up."""
        workers.start("shop", cwd=self.folder, env=self.environment, queues=["celery", "mails"])
        self.submit(orders)
        wait_until(lambda: self.count("kept") == orders, 30, "every charge is a dead letter")


@pytest.fixture
def shop(tmp_path: Path, redis_url: str) -> Iterator[Shop]:
    """A shop on an empty Redis."""
    with closing(open_store(redis_url, key_prefix="cr:")) as store:
        yield Shop(tmp_path, redis_url=redis_url, store=store)


def test_buried_charge_is_listed_shown_fixed_and_replayed(shop: Shop, workers: Workers) -> None:
    """The life of a letter as an operator sees it, from the worker's burial to the one charge."""
    shop.kill_dead(1, workers=workers)
    [letter] = shop.records("list")
    assert (letter["task"], letter["reason"], letter["error_type"]) == ("shop.charge", "permanent", "ValueError")
    assert (letter["args"], letter["kwargs"], letter["key"], letter["attempts"]) == ([0], {}, "charge:0", 1)
    shown = shop.dlq("show", letter["id"][:5])
    assert "shop.charge(0)" in shown
    assert "in charge" in shown
    assert r"\x1b[31mdo not honour" in shown
    shop.fix()
    [step] = shop.records("replay", letter["id"])
    assert step["outcome"] == "replayed"
    wait_until(lambda: shop.charged() == {"0 EUR": 1}, 15, "the replayed charge ran")
    refused = shop.dlq("replay", letter["id"], code=1)
    assert step["new_id"] in refused
    assert shop.records("list") == []
    assert shop.records("list", "--status", "all")[0]["status"] == "replayed"


def test_edited_charge_runs_with_the_new_arguments(shop: Shop, workers: Workers) -> None:
    """One letter is changed on its way back; arguments that do not fit the task are refused first."""
    shop.kill_dead(1, workers=workers)
    [letter] = shop.records("list")
    shop.fix()
    assert "the arguments do not fit" in shop.dlq("replay", letter["id"], "--kwargs", '{"amount": 1}', code=1)
    assert shop.records("list")[0]["status"] == "dead"
    shop.dlq("replay", letter["id"], "--kwargs", '{"currency": "USD"}')
    wait_until(lambda: shop.charged() == {"0 USD": 1}, 15, "the edited charge ran")
    [kept] = shop.records("list", "--status", "replayed")
    assert json.loads(kept["original"]["body"]) == [[0], {}]


def test_operators_killed_again_and_again_charge_every_order_once(shop: Shop, workers: Workers) -> None:
    """SIGKILL in the middle of a bulk replay, three times over, while the worker runs: nothing lost, nothing doubled."""
    shop.kill_dead(20, workers=workers)
    shop.fix()
    for killed_at in (1, 6, 13):
        operator = shop.start("replay", "--all", "--rate", "20/s")
        wait_until(lambda goal=killed_at: shop.count("replayed") >= goal, 20, f"{killed_at} replayed")  # type: ignore[misc]
        operator.send_signal(signal.SIGKILL)
        assert operator.wait() == -signal.SIGKILL
    shop.dlq("replay", "--all")
    everything = {f"{order} EUR": 1 for order in range(20)}
    wait_until(lambda: shop.charged().keys() == everything.keys(), 30, "every order charged")
    assert shop.dlq("list", "--json") == ""
    wait_until(lambda: not list(shop.store.ledger()), 15, "every submission ended")
    assert shop.charged() == everything


def test_three_operators_at_once_charge_every_order_once(shop: Shop, workers: Workers) -> None:
    """Who comes second is refused letter by letter; the worker never sees a job twice."""
    shop.kill_dead(20, workers=workers)
    shop.fix()
    operators = [shop.start("replay", "--all", user=name) for name in ("ann", "bob", "eve")]
    assert {operator.wait(60) for operator in operators} <= {0, 1}
    wait_until(lambda: len(shop.charged()) == 20, 30, "every order charged")
    wait_until(lambda: not list(shop.store.ledger()), 15, "every submission ended")
    assert set(shop.charged().values()) == {1}
    assert shop.count("replayed") == 20


def test_filters_stats_and_discard(shop: Shop) -> None:
    """What stats names can be listed, and what is listed can be dropped."""
    shop.keep(12)
    [stats] = shop.records("stats")
    assert (stats["kept"], stats["tasks"], stats["reasons"]) == (12, {"shop.charge": 12}, {"permanent": 12})
    [group] = stats["groups"]
    assert len(shop.records("list", "--group", group["fingerprint"], "--limit", "5")) == 5
    assert [record["args"] for record in shop.records("list", "--text", "order 11 was")] == [[11]]
    narrow = ("--task", "shop.*", "--error", "ValueError", "--older-than", "59m", "--newer-than", "61m")
    assert len(shop.records("list", *narrow)) == 12
    assert shop.records("list", "--older-than", "2h") == []
    assert "--yes" in shop.dlq("discard", "--text", "order 11 was", code=2)
    assert shop.dlq("discard", "--all", "--dry-run") == "Would discard 12 dead letters.\n"
    assert shop.count("kept") == 12
    assert shop.dlq("discard", "--text", "order 11 was", "--yes") == "Discarded 1 dead letter.\n"
    assert shop.count("kept") == 11


def test_filters_by_reason_and_queue(shop: Shop) -> None:
    """Each finds its own."""
    shop.keep(1)
    shop.keep(1, first=1, reason="poison")
    shop.keep(1, first=2, queue="mails")
    shop.keep(1, first=3, reason="poison", queue="mails")

    def found(*words: str) -> list[int]:
        return sorted(record["args"][0] for record in shop.records("list", *words))

    assert found("--reason", "poison") == [1, 3]
    assert found("--queue", "mails") == [2, 3]


def test_dry_run_changes_nothing(shop: Shop) -> None:
    """Letters and counts stay as they are."""
    shop.keep(3)
    before = shop.store.letters()
    assert [step["outcome"] for step in shop.records("replay", "--all", "--dry-run")] == ["ready"] * 3
    assert shop.store.letters() == before
    assert shop.count("replayed") == 0


def test_call_of_a_removed_task_is_refused(shop: Shop, workers: Workers) -> None:
    """A letter of a task that this code no longer has is named, not published into the void."""
    shop.kill_dead(0, workers=workers)
    script = "import shop; shop.mail.delay('a@example.com')"
    subprocess.run([sys.executable, "-c", script], cwd=shop.folder, env=shop.environment, check=True)
    wait_until(lambda: shop.count("kept") == 1, 15, "the mail is a dead letter")
    (shop.folder / "without-mail").touch()
    [step] = shop.records("replay", "--all", code=1)
    assert (step["outcome"], step["reason"]) == ("refused", "no_task")
    assert [(letter["status"], letter["queue"]) for letter in shop.records("list")] == [("dead", "mails")]
    shop.dlq("replay", "--all", "--force")
    wait_until(lambda: shop.count("kept") == 2, 15, "the forced call reached the worker, which still has the task")
    assert [letter["loops"] for letter in shop.records("list")] == [1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["replay"], "--all"),
        (["discard", "--yes"], "--all"),
        (["list", "--older-than", "2x"], "not a duration"),
        (["list", "--reason", "bad luck"], "exhausted"),
        (["replay", "--all", "--rate", "fast"], "not a rate"),
        (["replay", "--all", "--rate", "0/s"], "not a rate"),
        (["replay", "x", "--args", "[1"], "not JSON"),
        (["replay", "x", "--args", "{}"], "not a JSON list"),
        (["replay", "x", "--kwargs", "[]"], "not a JSON object"),
        (["replay", "--all", "--args", "[1]"], "one letter"),
    ],
)
def test_wrong_usage_is_said_with_code_two(words: list[str], said: str) -> None:
    """Nothing is guessed, and nothing is touched before the command line is understood."""
    done = CliRunner().invoke(reliable, ["dlq", *words], obj=None)
    assert (done.exit_code, said in done.output) == (2, True), done.output


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("15m", 900), ("2h", 7200), ("1d12h", 129_600), ("0.5h", 1800), ("1W", 604_800)],
)
def test_durations_are_read(text: str, seconds: float) -> None:
    """Units as operators write them."""
    assert duration(text) == seconds


@pytest.mark.parametrize(("text", "per_second"), [("10/s", 10), ("5", 5), ("120/m", 2), ("3600/h", 1), ("0.5/s", 0.5)])
def test_rates_are_read(text: str, per_second: float) -> None:
    """Units as operators write them."""
    assert rate(text) == per_second


def test_missing_letter_is_said_with_code_one(shop: Shop) -> None:
    """An id that fits nothing is an error; a filter that fits nothing is an answer."""
    assert "no dead letter" in shop.dlq("show", "abc", code=1)
    assert "No dead letters match" in shop.dlq("list")
    assert "nothing to replay" in shop.dlq("replay", "--all")


def test_store_that_is_away_is_one_line(shop: Shop) -> None:
    """No traceback at three in the morning."""
    shop.environment["SHOP_REDIS"] = "redis://127.0.0.1:1/0"
    said = shop.dlq("list", code=1)
    assert "Traceback" not in said
    assert said.startswith("Error: ")


def test_screens_fit_a_terminal_of_80_columns(shop: Shop) -> None:
    """No line of the table wraps, ids are whole, and colour comes only to a terminal that may show it."""
    shop.keep(2)
    screen = on_terminal(shop, "list", columns=80)
    lines = ANSI.sub("", screen).splitlines()
    assert max(len(line) for line in lines) <= 80
    assert lines[0].split() == ["ID", "AGE", "TASK", "REASON", "ERROR"]
    assert [line.split()[0] for line in lines[1:3]] == [letter["id"][:8] for letter in shop.records("list")]
    assert ANSI.search(screen)
    assert not ANSI.search(on_terminal(shop, "list", columns=80, before=("--no-color",)))
    assert not ANSI.search(shop.dlq("list"))


def test_long_replay_shows_its_progress_on_a_terminal(shop: Shop) -> None:
    """The bar counts to the end and leaves; the report stays."""
    shop.keep(5)
    screen = on_terminal(shop, "replay", "--all", "--rate", "5/s", columns=100)
    assert "2/5" in screen
    assert "Replayed 5 of 5 dead letters." in screen


def test_discard_asks_on_a_terminal(shop: Shop) -> None:
    """No is no, yes is yes."""
    shop.keep(2)
    assert "Aborted" in on_terminal(shop, "discard", "--all", columns=80, answer=b"n\n")
    assert shop.count("kept") == 2
    on_terminal(shop, "discard", "--all", columns=80, answer=b"y\n")
    assert shop.count("kept") == 0


def test_plug_in_costs_every_celery_process_next_to_nothing() -> None:
    """Celery imports the plug-in in each worker: it brings in neither tables nor stores nor letters."""
    script = "import sys, celery_reliable.cli; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, check=True
    ).stdout.decode().split()  # fmt: skip
    assert "celery_reliable.cli" in loaded
    heavy = {
        "rich",
        "redis",
        "celery.app.base",
        "celery.bin.celery",
        "celery_reliable.dead_letters",
        "celery_reliable.task",
    }
    assert not heavy & set(loaded)


def on_terminal(shop: Shop, *words: str, columns: int, before: tuple[str, ...] = (), answer: bytes = b"") -> str:
    """Run ``dlq`` on a terminal of that width, typing ``answer``; return everything it wrote."""
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    command = [sys.executable, "-m", "celery", "-A", "shop", *before, "reliable", "dlq", *words]
    process = subprocess.Popen(
        command, cwd=shop.folder, env=shop.environment, stdin=terminal, stdout=terminal, stderr=terminal
    )
    os.close(terminal)
    os.write(controller, answer)
    written = b"".join(iter(lambda: _read(controller), b""))
    os.close(controller)
    process.wait(30)
    return written.decode()


def _read(controller: int) -> bytes:
    try:
        return os.read(controller, 65536)
    except OSError:  # Linux: the other end is closed
        return b""
