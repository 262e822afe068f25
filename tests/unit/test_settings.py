"""The settings: what is accepted, and what the messages say."""

from __future__ import annotations

import datetime as dt
import math
import os
from collections.abc import Mapping
from typing import Any

import pytest

from celery_reliable.errors import ConfigurationError
from celery_reliable.settings import PER_TASK, Settings, describe, mask_secrets, resolve_store_url


class Namespaced(dict[str, Any]):
    """A configuration whose names carry a prefix, as Celery's own view of Django settings does."""

    prefix = "CELERY_"


def refusal(conf: Mapping[str, Any]) -> str:
    """Return the text of the error that a configuration causes."""
    with pytest.raises(ConfigurationError) as caught:
        Settings.from_conf(dict(conf))
    return str(caught.value)


def task_refusal(**given: Any) -> str:
    """Return the text of the error that a task's options cause."""
    with pytest.raises(ConfigurationError) as caught:
        Settings().for_task("shop.charge", **given)
    return str(caught.value)


def test_an_empty_configuration_is_all_defaults() -> None:
    """Nothing has to be set."""
    assert Settings.from_conf({}) == Settings()


def test_what_is_set_wins_and_the_rest_is_default() -> None:
    """A setting changes its own field only."""
    settings = Settings.from_conf({"reliable_lease_ttl": 77, "task_acks_late": False})

    assert settings == Settings(lease_ttl=77.0)


def test_zero_and_none_are_values_not_gaps() -> None:
    """A drain without patience and an unlimited retry time can be asked for."""
    settings = Settings.from_conf({"reliable_drain_timeout": 0, "reliable_retry_for": None, "reliable_max_retries": 0})

    assert (settings.drain_timeout, settings.retry_for, settings.max_retries) == (0.0, None, 0)


def test_sequences_become_tuples() -> None:
    """Settings can be shared: nothing in them can be changed."""
    settings = Settings.from_conf({"reliable_retry_on": [OSError, "shop.errors.Busy"]})

    assert settings.retry_on == (OSError, "shop.errors.Busy")


def test_settings_cannot_be_changed() -> None:
    """A changed copy is the only way to another value."""
    with pytest.raises(AttributeError):
        Settings().lease_ttl = 3.0  # type: ignore[misc]


def test_passwords_are_not_in_the_repr() -> None:
    """Settings end up in logs."""
    assert "secret" not in repr(Settings.from_conf({"reliable_store_url": "redis://:secret@store/0"}))


@pytest.mark.parametrize(
    "value",
    ["15", "15s", True, None, -1, 2.9, math.nan, math.inf, dt.timedelta(seconds=15), [15]],
    ids=repr,
)
def test_a_duration_is_a_number_of_seconds(value: object) -> None:
    """Everything else is refused with what was expected, what was found and what to do."""
    text = refusal({"reliable_lease_ttl": value})

    assert "reliable_lease_ttl: expected a number of seconds, at least 3, found " in text
    assert f"({type(value).__name__}); write plain seconds" in text
    assert "remove it for the default 15.0" in text


@pytest.mark.parametrize("ttl", [3, 3.0, 15])
def test_a_lease_leaves_time_for_three_renewals(ttl: float) -> None:
    """Renewed every third of its life and at most once a second: three seconds are the least."""
    assert Settings.from_conf({"reliable_lease_ttl": ttl}).lease_ttl == ttl


@pytest.mark.parametrize(
    ("name", "wrong", "expected"),
    [
        ("max_retries", 1.5, "a whole number, at least 0"),
        ("max_retries", True, "a whole number, at least 0"),
        ("max_retries", None, "a whole number, at least 0"),
        ("max_deliveries", 0, "a whole number, at least 1"),
        ("dead_letter_max", 0, "a whole number, at least 1"),
        ("dead_letter_ttl", 0, "a number of seconds, at least 1"),
        ("claim_check_threshold", 0, "a whole number, at least 1"),
        ("wait_replicas", -1, "a whole number, at least 0"),
        ("drain_timeout", -0.1, "a number of seconds, at least 0"),
        ("retry_for", -1, "a number of seconds, at least 0, or None"),
        ("ledger", 1, "True or False"),
        ("ledger", "yes", "True or False"),
        ("on_conflict", "skip", "'return_existing' or 'raise' or 'replace' or 'queue_one'"),
        ("on_unknown_error", ["fail"], "'fail' or 'retry'"),
        ("on_store_down", None, "'wait' or 'reject'"),
        ("key_prefix", "{cr}", "1 to 32 letters, digits or any of _ . : -"),
        ("key_prefix", "", "1 to 32 letters, digits or any of _ . : -"),
        ("store_url", 6379, "a URL that begins with one of redis://"),
        ("store_url", "reddis://store", "a URL that begins with one of redis://"),
        ("retry_on", OSError, "a list or tuple of exception classes or dotted paths"),
        ("retry_on", "shop.Busy", "a list or tuple of exception classes or dotted paths"),
        ("fail_on", [int], "a list or tuple of exception classes or dotted paths"),
        ("fail_on", ["not a path"], "a list or tuple of exception classes or dotted paths"),
        ("event_hooks", [7], "a list or tuple of functions or dotted paths"),
        ("breaker", "two words", "a name of 1 to 100 characters without blanks, or None"),
        ("breakers", ["payments"], "a dict that gives each breaker a dict of options (failures, ratio"),
    ],
)
def test_a_wrong_value_is_refused_with_what_was_expected(name: str, wrong: object, expected: str) -> None:
    """The message names setting, expectation and finding."""
    text = refusal({f"reliable_{name}": wrong})

    assert f"reliable_{name}: expected {expected}" in text
    assert f"found {wrong!r}"[:60] in text


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"failures": 0}, "'bank': failures: expected a whole number from 1 to 1000, found 0 (int)"),
        ({"ratio": 1.5}, "'bank': ratio: expected a number above 0 and at most 1, found 1.5 (float)"),
        ({"open_for": -1}, "'bank': open_for: expected a number of seconds from 1 to 86400, found -1 (int)"),
        ({"probe": 1}, "'bank': no option 'probe', expected failures, ratio, window, open_for, probes"),
        (7, "'bank': expected a dict of options (failures, ratio, window, open_for, probes), found 7 (int)"),
    ],
)
def test_wrong_options_of_a_breaker_are_refused(options: object, problem: str) -> None:
    """Each by its name."""
    assert f"reliable_breakers: {problem}" in refusal({"reliable_breakers": {"shop": {}, "bank": options}})


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"failure_ratio": 0}, "'mail': failure_ratio: expected a number above 0 and at most 1, found 0 (int)"),
        ({"minimum": 0}, "'mail': minimum: expected a whole number from 1 to 1000000, found 0 (int)"),
        ({"pause": 0.5}, "'mail': pause: expected a number of seconds from 1 to 86400, found 0.5 (float)"),
        ({"ratio": 0.5}, "'mail': no option 'ratio', expected failure_ratio, window, minimum, pause"),
    ],
)
def test_wrong_options_of_a_kill_switch_are_refused(options: object, problem: str) -> None:
    """Each by its name."""
    assert f"reliable_kill_switches: {problem}" in refusal({"reliable_kill_switches": {"shop": {}, "mail": options}})


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"depth": 0}, "'reports': depth: expected a whole number from 1 to 1000000000, found 0 (int)"),
        ({"depth": -5}, "'reports': depth: expected a whole number from 1 to 1000000000, found -5 (int)"),
        ({"depth": 10**12}, "'reports': depth: expected a whole number from 1 to 1000000000"),
        ({"age": 0.1}, "'reports': age: expected a number of seconds from 1 to 2592000, found 0.1 (float)"),
        (
            {"depth": 1, "mode": "drop"},
            "'reports': mode: expected 'raise' or 'block' or 'shed' or 'slow', found 'drop'",
        ),
        (
            {"mode": "raise"},
            "'reports': expected depth or age, found neither; say what is limited, or remove the queue",
        ),
        ({}, "'reports': expected depth or age, found neither"),
    ],
)
def test_wrong_limits_of_a_queue_are_refused(options: object, problem: str) -> None:
    """Each by its name."""
    assert f"reliable_queue_limits: {problem}" in refusal({"reliable_queue_limits": {"reports": options}})


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("reliable_leese_ttl", "reliable_lease_ttl"),
        ("reliable_max_retrys", "reliable_max_retries"),
        ("reliable_deadletter_ttl", "reliable_dead_letter_ttl"),
    ],
)
def test_a_mistyped_name_is_refused_with_the_nearest_known_one(wrong: str, right: str) -> None:
    """Celery itself ignores names that it does not know."""
    assert f"{wrong}: unknown setting, did you mean {right}?" in refusal({wrong: 1})


def test_a_name_like_nothing_is_refused_without_a_guess() -> None:
    """No far-fetched proposals."""
    assert "reliable_zzz: unknown setting, no name is like it." in refusal({"reliable_zzz": 1})


def test_a_spelling_that_celery_ignores_is_refused() -> None:
    """Upper case is read in a namespace only."""
    assert "RELIABLE_LEDGER: Celery does not read this spelling; write reliable_ledger" in refusal(
        {"RELIABLE_LEDGER": False}
    )


def test_an_option_of_tasks_is_no_setting() -> None:
    """One key template for all tasks makes no sense."""
    text = refusal({"reliable_idempotency_key": "charge:{order_id}"})

    assert "belongs to one task, not to the settings; write @app.task(idempotency_key=...)" in text


def test_modules_and_functions_in_a_configuration_module_are_no_settings() -> None:
    """A configuration module may import what it likes."""
    assert Settings.from_conf({"reliable_os": os, "reliable_join": os.path.join}) == Settings()


def test_all_problems_are_told_at_once_one_a_line() -> None:
    """Nobody has to start the worker five times."""
    lines = refusal({"reliable_lease_ttl": 0, "reliable_ledger": 2, "reliable_leese": 1}).splitlines()

    assert lines[0] == "celery_reliable is not configured correctly:"
    assert sorted(line.split(":")[0].strip() for line in lines[1:]) == [
        "reliable_lease_ttl",
        "reliable_ledger",
        "reliable_leese",
    ]


def test_names_in_a_namespace_are_shown_as_the_project_spells_them() -> None:
    """The reader can search for them."""
    with pytest.raises(ConfigurationError) as caught:
        Settings.from_conf(Namespaced(reliable_lease_ttl="x", CELERY_RELIABLE_MAX_RETRYS=1, CELERY_reliable_ledger=1))

    assert "CELERY_RELIABLE_LEASE_TTL: expected" in str(caught.value)
    assert "CELERY_RELIABLE_MAX_RETRYS: unknown setting, did you mean CELERY_RELIABLE_MAX_RETRIES?" in str(caught.value)
    assert "CELERY_reliable_ledger: Celery does not read this spelling; write CELERY_RELIABLE_LEDGER" in str(
        caught.value
    )


def test_upper_case_names_outside_the_namespace_belong_to_somebody_else() -> None:
    """A Django project may have a RELIABLE_ setting of its own."""
    assert Settings.from_conf(Namespaced(RELIABLE_PAYMENTS=True)) == Settings()


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("reddis://user:hunter2@store:6379/0", "'reddis://***@store:6379/0'"),
        ("reddis://:hunter2/with@slash@store/0", "'reddis://***@store/0'"),
        ("reddis://store/0?password=hunter2&db=1", "'reddis://store/0?password=***&db=1'"),
        ("reddis:/user:hunter2@store", "a text that may hold a password"),
        ("user:hunter2@store:6379", "a text that may hold a password"),
    ],
)
def test_passwords_are_masked_in_messages(url: str, kept: str) -> None:
    """An error text is read by more people than the configuration."""
    text = refusal({"reliable_store_url": url})

    assert "hunter2" not in text
    assert f"found {kept}" in text


def test_masking_leaves_plain_text_alone() -> None:
    """Only URLs hold secrets; all of several are masked."""
    assert mask_secrets("a@b redis://h/0") == "a@b redis://h/0"
    assert mask_secrets("['redis://u:p@h', 'amqp://u:q@i']") == "['redis://***@h', 'amqp://***@i']"


# --- settings that are right alone and wrong together


def test_the_done_marker_outlives_retries_and_visibility_timeout() -> None:
    """Otherwise a late copy of a finished message runs again."""
    conf = {"reliable_max_retries": 10, "reliable_retry_backoff_max": 600, "reliable_idempotency_ttl": 9_600}

    assert (
        "reliable_idempotency_ttl: expected more than 9600 seconds (retries for 6000 by reliable_max_retries, then the "
        "broker's visibility_timeout of 3600), found 9600; raise it, or shorten the retries"
    ) in refusal(conf)
    assert Settings.from_conf({**conf, "reliable_idempotency_ttl": 9_601}).idempotency_ttl == 9_601


def test_the_broker_s_own_visibility_timeout_counts() -> None:
    """A project that lengthened it needs longer markers."""
    conf = {"broker_transport_options": {"visibility_timeout": 700_000}}

    assert "visibility_timeout of 700000" in refusal(conf)
    assert Settings.from_conf({"broker_transport_options": None}) == Settings()


def test_a_bound_on_total_time_is_the_retry_window() -> None:
    """With retry_for the number of retries does not matter."""
    assert Settings.from_conf({"reliable_max_retries": 10_000, "reliable_retry_for": 60}).retry_window() == 60
    assert "by reliable_retry_for" in refusal({"reliable_retry_for": 604_800})


def test_a_lease_is_not_longer_than_the_longest_run() -> None:
    """It would never be renewed."""
    assert "reliable_max_runtime: expected at least reliable_lease_ttl (15 seconds), found 10" in refusal(
        {"reliable_max_runtime": 10}
    )


def test_the_cap_of_the_backoff_is_not_below_its_base() -> None:
    """The base would have no effect."""
    assert "reliable_retry_backoff_max: expected at least reliable_retry_backoff (700 seconds), found 600" in refusal(
        {"reliable_retry_backoff": 700}
    )


# --- one task


def test_a_task_s_own_options_win() -> None:
    """The project's settings are the default for what the task does not say."""
    project = Settings.from_conf({"reliable_lease_ttl": 60, "reliable_max_retries": 3})

    assert project.for_task("shop.charge", max_retries=9) == Settings(lease_ttl=60.0, max_retries=9)
    assert project.for_task("shop.charge") == project


def test_a_wrong_task_option_names_the_task() -> None:
    """A project has many tasks."""
    assert task_refusal(max_retries=-1).splitlines() == [
        "task 'shop.charge' is not configured correctly:",
        "  max_retries: expected a whole number, at least 0, found -1 (int); correct it, or remove it for the default 5",
    ]


def test_a_mistyped_task_option_is_refused_with_the_nearest_known_one() -> None:
    """The key template counts among the known ones."""
    assert "idempotence_key: unknown option, did you mean idempotency_key?" in task_refusal(idempotence_key="x")


def test_a_project_wide_setting_is_no_task_option() -> None:
    """One store, one ledger."""
    assert "ledger: not a task option; set reliable_ledger for the whole project" in task_refusal(ledger=False)


def test_options_of_a_task_are_checked_against_the_project_s() -> None:
    """A task that retries for longer than the project's markers live is refused."""
    assert "idempotency_ttl: expected more than 1003600 seconds (retries for 1000000 by retry_for" in task_refusal(
        retry_for=1_000_000
    )


# --- where the store is


@pytest.mark.parametrize(
    ("explicit", "backend", "broker", "url"),
    [
        ("memory://", "redis://backend/1", "redis://broker/0", "memory://"),
        (None, "redis://backend/1", "redis://broker/0", "redis://backend/1"),
        (None, "rediss://backend/1", "amqp://broker", "rediss://backend/1"),
        (None, "db+sqlite:///x", "redis://broker/0", "redis://broker/0"),
        (None, None, "redis://broker/0", "redis://broker/0"),
        (None, None, ["redis://first/0", "redis://second/0"], "redis://first/0"),
        (None, None, "redis://first/0;redis://second/0", "redis://first/0"),
        (None, "redis", "amqp://broker", "redis://"),
    ],
)
def test_the_store_is_the_first_redis_among_setting_backend_broker(
    explicit: str | None, backend: object, broker: object, url: str
) -> None:
    """A project with Redis anywhere needs no setting."""
    assert resolve_store_url(explicit, result_backend=backend, broker_url=broker) == url


@pytest.mark.parametrize(
    ("backend", "broker"),
    [(None, None), ("rpc://", "amqp://user:hunter2@broker"), (object(), []), ("db+postgresql://u:hunter2@h", "sqs://")],
)
def test_no_redis_anywhere_is_refused_with_the_setting_s_name(backend: object, broker: object) -> None:
    """And without a password."""
    with pytest.raises(ConfigurationError, match="set reliable_store_url to a URL that begins with one of") as caught:
        resolve_store_url(None, result_backend=backend, broker_url=broker)

    assert "hunter2" not in str(caught.value)


def test_a_sentinel_s_master_has_to_be_named() -> None:
    """Celery keeps its name in the transport options, where the store does not look."""
    with pytest.raises(
        ConfigurationError, match="set reliable_store_url to sentinel://host:port,host:port/master_name"
    ):
        resolve_store_url(None, result_backend=None, broker_url="sentinel://a:26379;sentinel://b:26379")


# --- the reference table


def test_every_setting_says_what_it_means() -> None:
    """In whole sentences, with a unit where there is one."""
    for setting in describe():
        assert setting.meaning.endswith("."), setting.name
        assert setting.name.startswith("reliable_")
        assert (setting.unit == "seconds") == ("seconds" in setting.expected), setting.name


def test_every_default_obeys_its_own_rule() -> None:
    """What the table shows can be written into a configuration."""
    conf = {setting.name: setting.default for setting in describe()}

    assert Settings.from_conf(conf) == Settings()
    assert {setting.name.removeprefix("reliable_") for setting in describe() if setting.per_task} == set(PER_TASK)
