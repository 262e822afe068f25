"""The preset: literals, in agreement with Settings and with Celery."""

from __future__ import annotations

import ast
import inspect

from celery.app.defaults import SETTING_KEYS
from kombu import Connection

from celery_reliable import errors, presets
from celery_reliable.settings import describe

VALUES = {name: value for name, value in vars(presets).items() if not name.startswith("__")}
OURS = {name: value for name, value in VALUES.items() if name.startswith("reliable_")}
CELERYS = {name: value for name, value in VALUES.items() if name not in OURS}


def test_the_preset_holds_literals_and_nothing_else() -> None:
    """Whatever a configuration module imports or computes would leak into app.conf."""
    docstring, *statements = ast.parse(inspect.getsource(presets)).body

    assert isinstance(docstring, ast.Expr)
    assert all(isinstance(statement, ast.Assign) for statement in statements)
    assert {statement.targets[0].id: ast.literal_eval(statement.value) for statement in statements} == VALUES  # type: ignore[attr-defined]


def test_pytest_adds_no_names_to_the_preset() -> None:
    """It rewrites the modules of a package that has a plug-in for it, and a project's own tests would have no settings."""
    assert [name for name in vars(presets) if not name.isidentifier()] == []
    assert [name for name in vars(errors) if not name.isidentifier()] != []  # where it does


def test_the_preset_and_the_settings_agree_on_every_default() -> None:
    """Each default is written twice; the two are one."""
    assert {setting.name: setting.default for setting in describe()} == OURS


def test_every_other_name_is_a_setting_of_celery() -> None:
    """Celery ignores a mistyped name in silence."""
    assert set(CELERYS) <= SETTING_KEYS


def test_the_preset_is_crash_safe_bounded_and_json_only() -> None:
    """What it promises, word by word."""
    assert {
        "task_acks_late": True,
        "task_reject_on_worker_lost": True,
        "worker_prefetch_multiplier": 1,
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        "broker_channel_error_retry": True,
        "broker_connection_retry_on_startup": True,
        "result_backend_always_retry": True,
        "enable_utc": True,
        "timezone": "UTC",
        "task_serializer": "json",
        "result_serializer": "json",
        "accept_content": ("json",),
        "result_accept_content": ("json",),
    }.items() <= CELERYS.items()
    assert 0 < CELERYS["result_backend_max_retries"] <= 10


def test_broker_options_are_left_to_code() -> None:
    """SQS reads visibility_timeout and others in its own way."""
    assert "broker_transport_options" not in CELERYS


def test_the_retries_of_a_publish_are_bounded_and_understood_by_kombu() -> None:
    """Every key of the policy is an argument of the function that takes it, and the waits sum up to seconds."""
    policy = presets.task_publish_retry_policy
    waits = [
        min(policy["interval_max"], policy["interval_start"] + n * policy["interval_step"])
        for n in range(int(policy["max_retries"]))
    ]

    assert set(policy) <= set(inspect.signature(Connection.ensure).parameters)
    assert 1 <= sum(waits) <= 5


def test_both_import_settings_name_the_wiring() -> None:
    """A project may override one of them."""
    assert CELERYS["imports"] == CELERYS["include"] == ("celery_reliable.wiring",)
