"""Stand in for a payment service, and keep a record of what it really charged.

Run it with ``python -m example_project.payments --record charges.jsonl``. ``POST /charges`` takes
``{"order_id": ..., "amount": "12.00"}`` and answers by the amount's cents:

======  ==========================================================================================
cents   answer
======  ==========================================================================================
``02``  402, always: the card is declined, until ``PUT /cards/ORDER_ID`` puts a good one in its place
``29``  429 with ``Retry-After: 1`` the first two times, then 200
``53``  503 the first two times, then 200
others  200
======  ==========================================================================================

Anything that is not such an order is 400. Every answer is one line of the record, and every 200 is a charge: the service
does *not* look at the Idempotency-Key, so that "charged once" is proven of the caller. With ``--dedup`` it
behaves like the real ones: a key that was charged gets its first answer again, and that line is no charge.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

REFUSALS_BEFORE_SUCCESS = 2
RETRY_AFTER = 1
_AMOUNT = re.compile(r"\d+\.(\d\d)")


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer, and one line of the record. ``charged``: money moved."""

    order_id: str
    amount: str
    key: str
    status: int
    charge_id: str = ""
    charged: bool = False
    monotonic: float = field(default_factory=time.monotonic)


def status_of(amount: str, *, refusals: int, card_is_good: bool) -> HTTPStatus:
    """Decide by the table above; ``refusals`` is how often this order was told to come back."""
    found = _AMOUNT.fullmatch(amount)
    if not found:
        return HTTPStatus.BAD_REQUEST
    cents = found[1]
    if cents == "02" and not card_is_good:
        return HTTPStatus.PAYMENT_REQUIRED
    if refusals < REFUSALS_BEFORE_SUCCESS and cents in {"29", "53"}:
        return HTTPStatus.TOO_MANY_REQUESTS if cents == "29" else HTTPStatus.SERVICE_UNAVAILABLE
    return HTTPStatus.OK


class Till:
    """Answer one order at a time and write each answer to the record before it is given."""

    def __init__(self, record: Path, *, dedup: bool = False) -> None:
        """Start with an empty memory; the record is appended to."""
        self._record = record
        self._dedup = dedup
        self._lock = threading.Lock()
        self._refusals: Counter[str] = Counter()
        self._good_cards: set[str] = set()
        self._charged: dict[str, Answer] = {}
        self._numbers = itertools.count(1)

    def charge(self, order: Mapping[str, Any], *, key: str) -> Answer:
        """Charge an order, or say why not."""
        with self._lock:
            answer = self._decide(str(order.get("order_id", "")), str(order.get("amount", "")), key)
            self._remember(answer)
            return answer

    def replace_card(self, order_id: str) -> None:
        """Accept this order's card from now on."""
        with self._lock:
            self._good_cards.add(order_id)

    def _decide(self, order_id: str, amount: str, key: str) -> Answer:
        known = self._charged.get(key) if self._dedup else None
        if known:
            return Answer(order_id, amount, key, HTTPStatus.OK, known.charge_id)
        card_is_good = order_id in self._good_cards
        status = status_of(amount if order_id else "", refusals=self._refusals[order_id], card_is_good=card_is_good)
        if status != HTTPStatus.OK:
            return Answer(order_id, amount, key, status)
        return Answer(order_id, amount, key, status, f"charge-{next(self._numbers)}", charged=True)

    def _remember(self, answer: Answer) -> None:
        if answer.charged and answer.key:
            self._charged.setdefault(answer.key, answer)
        if answer.status in {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE}:
            self._refusals[answer.order_id] += 1
        with self._record.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(asdict(answer)) + "\n")
            lines.flush()
            os.fsync(lines.fileno())


def read_record(path: Path) -> list[Answer]:
    """Return every answer given so far, oldest first."""
    if not path.exists():
        return []
    return [Answer(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


class PaymentServer(ThreadingHTTPServer):
    """HTTP in front of a till."""

    daemon_threads = True

    def __init__(self, port: int, till: Till) -> None:
        """Bind to loopback; port 0 takes a free one."""
        super().__init__(("127.0.0.1", port), _Handler)
        self.till = till

    @property
    def url(self) -> str:
        """Return the address to which orders go."""
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: PaymentServer

    def do_POST(self) -> None:
        if self.path != "/charges":
            self._reply(HTTPStatus.NOT_FOUND)
            return
        answer = self.server.till.charge(self._order(), key=self.headers.get("Idempotency-Key", ""))
        charge = {"id": answer.charge_id, "amount": answer.amount} if answer.charge_id else None
        self._reply(HTTPStatus(answer.status), charge)

    def do_PUT(self) -> None:
        kind, _, order_id = self.path.strip("/").partition("/")
        if kind != "cards" or not order_id:
            self._reply(HTTPStatus.NOT_FOUND)
            return
        self.server.till.replace_card(order_id)
        self._reply(HTTPStatus.OK)

    def _order(self) -> Mapping[str, Any]:
        """Read the body; what is no JSON object is an order without anything, which the till refuses."""
        try:
            order = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        except ValueError:
            return {}
        return order if isinstance(order, dict) else {}

    def _reply(self, status: HTTPStatus, facts: Mapping[str, Any] | None = None) -> None:
        body = json.dumps(facts or {"status": status.phrase}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if status == HTTPStatus.TOO_MANY_REQUESTS:
            self.send_header("Retry-After", str(RETRY_AFTER))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the base class's name
        """Stay quiet: the record says more."""


@contextmanager
def serving(record: Path, *, port: int = 0, dedup: bool = False) -> Iterator[PaymentServer]:
    """Serve in a thread of this process until the block ends."""
    server = PaymentServer(port, Till(record, dedup=dedup))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until told to stop; the first line on stdout is the address."""
    parser = argparse.ArgumentParser(prog="python -m example_project.payments", description="A fake payment service.")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument(
        "--record", type=Path, default=Path("charges.jsonl"), help="file to which every answer is added"
    )
    parser.add_argument("--dedup", action="store_true", help="honour the Idempotency-Key as real services do")
    options = parser.parse_args(arguments)
    server = PaymentServer(options.port, Till(options.record, dedup=options.dedup))
    sys.stdout.write(server.url + "\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main()
