"""The payment service answers by the amount and records every charge, whoever asked and how often."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests

from example_project.payments import PaymentServer, read_record, serving


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """Name a record that is not there yet."""
    return tmp_path / "charges.jsonl"


@pytest.fixture
def server(record: Path) -> Iterator[PaymentServer]:
    """Serve as the demo does: without looking at keys."""
    with serving(record) as running:
        yield running


@pytest.fixture
def dedup_server(record: Path) -> Iterator[PaymentServer]:
    """Serve as real services do."""
    with serving(record, dedup=True) as running:
        yield running


def post(server: PaymentServer, amount: str, *, order_id: str = "A-1", key: str = "charge:A-1") -> requests.Response:
    """Order something."""
    order = {"order_id": order_id, "amount": amount}
    return requests.post(f"{server.url}/charges", json=order, headers={"Idempotency-Key": key}, timeout=5)


def test_an_ordinary_amount_is_charged_and_recorded(server: PaymentServer, record: Path) -> None:
    """The record has order, amount and the caller's key."""
    response = post(server, "12.00")
    assert response.status_code == 200
    (answer,) = read_record(record)
    assert (answer.order_id, answer.amount, answer.key, answer.status) == ("A-1", "12.00", "charge:A-1", 200)
    assert answer.charged
    assert answer.charge_id == response.json()["id"]


def test_two_posts_with_one_key_are_two_charges(server: PaymentServer, record: Path) -> None:
    """Charging once is the caller's affair, else nothing would be proven."""
    ids = {post(server, "12.00").json()["id"] for _ in range(2)}
    assert len(ids) == 2
    assert [answer.charged for answer in read_record(record)] == [True, True]


def test_with_dedup_a_charged_key_gets_its_first_answer_again(dedup_server: PaymentServer, record: Path) -> None:
    """The second line of the record is no charge."""
    ids = {post(dedup_server, "12.00").json()["id"] for _ in range(2)}
    assert len(ids) == 1
    assert [answer.charged for answer in read_record(record)] == [True, False]


def test_with_dedup_a_refused_key_is_not_remembered(dedup_server: PaymentServer) -> None:
    """A refusal is no outcome to repeat."""
    assert [post(dedup_server, "12.53").status_code for _ in range(4)] == [503, 503, 200, 200]


def test_an_amount_of_02_is_declined_until_the_card_is_replaced(server: PaymentServer, record: Path) -> None:
    """However often it is tried, and for this order only."""
    assert [post(server, "12.02").status_code for _ in range(3)] == [402, 402, 402]
    assert requests.put(f"{server.url}/cards/A-1", timeout=5).status_code == 200
    assert post(server, "12.02").status_code == 200
    assert post(server, "12.02", order_id="A-2").status_code == 402
    assert [answer.charged for answer in read_record(record)] == [False, False, False, True, False]


def test_an_amount_of_29_is_told_twice_to_come_back_later(server: PaymentServer) -> None:
    """With the seconds to wait, and counted for each order."""
    first, second, third = (post(server, "12.29") for _ in range(3))
    assert [first.status_code, second.status_code, third.status_code] == [429, 429, 200]
    assert [first.headers["Retry-After"], second.headers["Retry-After"]] == ["1", "1"]
    assert "Retry-After" not in third.headers
    assert post(server, "12.29", order_id="A-2").status_code == 429


def test_an_amount_of_53_meets_an_outage_twice(server: PaymentServer) -> None:
    """Nothing says when to come back."""
    responses = [post(server, "12.53") for _ in range(3)]
    assert [response.status_code for response in responses] == [503, 503, 200]
    assert "Retry-After" not in responses[0].headers


@pytest.mark.parametrize(
    "body",
    [b"", b"not json", b"[1]", b'{"order_id": "A-1"}', b'{"amount": "1.00"}', b'{"order_id": "A-1", "amount": "1"}'],
)
def test_what_is_no_order_is_refused_and_recorded(server: PaymentServer, record: Path, body: bytes) -> None:
    """Malformed is 400, and no charge."""
    assert requests.post(f"{server.url}/charges", data=body, timeout=5).status_code == 400
    assert [answer.charged for answer in read_record(record)] == [False]


def test_other_addresses_are_not_found(server: PaymentServer, record: Path) -> None:
    """They leave no trace in the record."""
    assert requests.post(f"{server.url}/refunds", json={}, timeout=5).status_code == 404
    assert requests.put(f"{server.url}/cards/", timeout=5).status_code == 404
    assert read_record(record) == []


def test_charges_that_come_at_the_same_time_are_all_recorded(server: PaymentServer, record: Path) -> None:
    """Each has an id of its own."""
    with ThreadPoolExecutor(8) as customers:
        list(customers.map(lambda number: post(server, "1.00", order_id=f"A-{number}"), range(40)))
    assert len({answer.charge_id for answer in read_record(record)}) == 40


def test_as_a_process_it_says_where_it_listens(record: Path) -> None:
    """The first line on stdout is the address."""
    command = [sys.executable, "-m", "example_project.payments", "--record", str(record)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            url = process.stdout.readline().strip()
            assert requests.post(f"{url}/charges", json={"order_id": "A-1", "amount": "1.00"}, timeout=5).ok
        finally:
            process.kill()
    assert len(read_record(record)) == 1
