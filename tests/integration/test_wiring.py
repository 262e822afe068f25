"""How celery_reliable gets into an app, and that the project's own settings win: real apps, real workers."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery, signals
from celery.beat import Service
from kombu.utils.imports import symbol_by_name
from redis import Redis

from celery_reliable import ReliableTask, presets
from celery_reliable.errors import ConfigurationError
from celery_reliable.runtime import forget_runtime
from celery_reliable.settings import Settings
from celery_reliable.wiring import CONSUMER_STEPS, WORKER_STEPS, install
from celery_reliable.worker.preflight import REDIS_TRANSPORT_OPTIONS, Preflight, complete_transport_options
from tests.waiting import wait_until

if TYPE_CHECKING:
    from tests.integration.workers import Workers

PRESET = "celery_reliable.presets"
STEPS = {step.replace(":", ".") for step in (*WORKER_STEPS, *CONSUMER_STEPS)}
ROOT = Path(__file__).resolve().parents[2]

# A project that tells, once its worker consumes, what it was made of.
PROJECT = """
import json, os
from celery import Celery, signals

app = Celery("project", broker=os.environ["URL"])
{body}

@signals.worker_ready.connect(weak=False)
def tell(sender, **_):
    conf = sender.app.conf
    report = {{
        "steps": [*sender.blueprint.steps, *sender.controller.blueprint.steps],
        "consumer": type(sender).__name__,
        "acks_late": conf.task_acks_late,
        "prefetch_multiplier": sender.controller.prefetch_multiplier,
        "lease_ttl": conf.get("reliable_lease_ttl"),
        "sweep": [sender.connection.default_channel.unacked_restore_interval,
                  sender.connection.default_channel.unacked_restore_throttle,
                  sender.connection.default_channel.unacked_mutex_expire],
        "visibility_timeout": sender.connection.default_channel.visibility_timeout,
    }}
    with open(os.environ["REPORT"], "w") as file:
        json.dump(report, file)
"""

USE_PRESET = 'app.config_from_object("celery_reliable.presets")'


def project(directory: Path, body: str) -> Path:
    """Write the project into a directory of its own."""
    (directory / "project.py").write_text(PROJECT.format(body=textwrap.dedent(body)))
    return directory


def report(workers: Workers, directory: Path, *, url: str, body: str, arguments: Sequence[str] = ()) -> dict[str, Any]:
    """Start a worker of that project and return what it tells."""
    path = directory / "report.json"
    project(directory, body)
    environment = {"URL": url, "REPORT": str(path)}
    workers.start("project", pool="solo", cwd=directory, env=environment, arguments=arguments)
    told: dict[str, Any] = json.loads(path.read_text())
    return told


def app_with(**conf: Any) -> Celery:
    """Return an app with a configuration of its own, which has been read."""
    app = Celery("own", set_as_current=False)
    app.config_from_object(conf)
    app.conf.finalize()
    return app


def preset_app(**conf: Any) -> Celery:
    """Return an app with our preset, changed afterwards."""
    app = Celery("preset", set_as_current=False)
    app.config_from_object(PRESET)
    app.conf.update(conf)
    return app


# --- the configuration


def test_a_project_s_own_configuration_is_completed_from_the_preset() -> None:
    """What it sets wins, what it does not set comes from us, before Celery's defaults."""
    app = app_with(task_acks_late=False, reliable_lease_ttl=77)
    install(app)

    assert (app.conf.task_acks_late, app.conf.reliable_lease_ttl) == (False, 77)
    assert (app.conf.worker_prefetch_multiplier, app.conf.reliable_max_retries) == (1, 5)
    assert Settings.from_conf(app.conf) == Settings(lease_ttl=77.0)


@pytest.mark.parametrize("installed", ["before", "after"])
def test_a_change_to_the_configuration_wins_before_and_after(installed: str) -> None:
    """`app.conf.update` is the usual way to override one value."""
    app = Celery("changed", set_as_current=False)
    if installed == "before":
        install(app)
    app.conf.update(task_reject_on_worker_lost=False, reliable_lease_ttl=5)
    if installed == "after":
        install(app)

    assert (app.conf.task_reject_on_worker_lost, app.conf.reliable_lease_ttl) == (False, 5)
    assert app.conf.task_acks_late is True


def test_an_argument_of_the_app_wins() -> None:
    """`Celery(task_acks_late=False)` is a setting too."""
    app = Celery("arguments", set_as_current=False, task_acks_late=False, broker="redis://broker/3")
    app.config_from_object(PRESET)
    install(app)

    assert (app.conf.task_acks_late, app.conf.broker_url) == (False, "redis://broker/3")


def test_a_second_configuration_is_completed_again() -> None:
    """It replaces the first one, our values included."""
    app = app_with(reliable_lease_ttl=60)
    install(app)
    app.config_from_object({"reliable_lease_ttl": 30, "task_acks_late": False})

    assert (app.conf.reliable_lease_ttl, app.conf.task_acks_late) == (30, False)
    assert (app.conf.worker_prefetch_multiplier, app.conf.reliable_max_retries) == (1, 5)


def test_defaults_added_by_the_project_win() -> None:
    """`add_defaults` is the project's word as well."""
    app = preset_app()
    install(app)
    app.add_defaults(lambda: {"reliable_lease_ttl": 21})

    assert app.conf.reliable_lease_ttl == 21


def test_installing_reads_no_configuration() -> None:
    """A project may bind tasks before it says how it is configured."""
    app = Celery("unread", set_as_current=False)
    install(app)
    assert not app.configured

    app.config_from_object({"task_acks_late": False})
    assert (app.conf.task_acks_late, app.conf.worker_prefetch_multiplier) == (False, 1)


def test_installing_twice_is_installing_once() -> None:
    """Every task that is bound installs again."""
    app = app_with()
    install(app)
    maps, steps = [*(app.conf.maps or ())], {kind: set(names) for kind, names in app.steps.items()}
    install(app)
    app.conf.update(reliable_lease_ttl=5)
    install(app)

    assert app.conf.maps == maps
    assert all(one is other for one, other in zip(app.conf.maps or (), maps, strict=True))
    assert app.steps == steps
    assert app.steps == {"worker": set(WORKER_STEPS), "consumer": set(CONSUMER_STEPS)}


def test_two_apps_share_no_mutable_value() -> None:
    """A project that changes a dictionary in place changes it for that app only."""
    loaded, other_loaded, filled, other_filled = preset_app(), preset_app(), app_with(), app_with()
    for app in (loaded, other_loaded, filled, other_filled):
        install(app)
    before = dict(presets.task_publish_retry_policy)

    loaded.conf.task_publish_retry_policy["max_retries"] = 99
    filled.conf.task_publish_retry_policy["max_retries"] = 98

    assert presets.task_publish_retry_policy == before
    assert other_loaded.conf.task_publish_retry_policy == before
    assert other_filled.conf.task_publish_retry_policy == before


def test_a_copy_of_the_configuration_is_complete() -> None:
    """Celery copies it for every worker that is embedded in tests."""
    app = app_with()
    install(app)

    assert app.conf.copy().reliable_max_retries == 5


def test_a_django_project_s_settings_win_over_ours(tmp_path: Path) -> None:
    """With the namespace that Celery's own guide recommends."""
    (tmp_path / "shop_settings.py").write_text(
        "SECRET_KEY = 'x'\nUSE_TZ = True\nTIME_ZONE = 'Europe/Berlin'\nCELERY_BROKER_URL = 'redis://broker/4'\n"
        "CELERY_TASK_ACKS_LATE = False\nCELERY_RELIABLE_LEASE_TTL = 77\n"
    )
    program = """
        import json
        from celery import Celery
        from celery_reliable import install
        from celery_reliable.settings import Settings
        app = Celery("shop")
        install(app)
        app.config_from_object("django.conf:settings", namespace="CELERY")
        names = ["broker_url", "task_acks_late", "reliable_lease_ttl", "worker_prefetch_multiplier", "task_serializer"]
        print(json.dumps([[app.conf[name] for name in names], Settings.from_conf(app.conf) == Settings(lease_ttl=77.0)]))
    """
    run = python(program, cwd=tmp_path, env={"DJANGO_SETTINGS_MODULE": "shop_settings"})

    assert json.loads(run.stdout) == [["redis://broker/4", False, 77, 1, "json"], True], run.stderr


def test_a_mistyped_django_setting_is_found(tmp_path: Path) -> None:
    """And shown as the project spells it."""
    (tmp_path / "shop_settings.py").write_text("SECRET_KEY = 'x'\nCELERY_RELIABLE_LEESE_TTL = 77\n")
    program = """
        from celery import Celery
        from celery_reliable.settings import Settings
        app = Celery("shop")
        app.config_from_object("django.conf:settings", namespace="CELERY")
        Settings.from_conf(app.conf)
    """
    run = python(program, cwd=tmp_path, env={"DJANGO_SETTINGS_MODULE": "shop_settings"})

    assert "CELERY_RELIABLE_LEESE_TTL: unknown setting, did you mean CELERY_RELIABLE_LEASE_TTL?" in run.stderr


def python(program: str, *, cwd: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a program in a fresh interpreter."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(cwd), str(ROOT)]), **env},
        capture_output=True,
        text=True,
        check=False,
    )


# --- options of the broker's transport


def test_the_recovery_options_are_merged_under_the_project_s() -> None:
    """On Redis, and the project's keys win."""
    app = preset_app(broker_url="redis://broker/0", broker_transport_options={"unacked_mutex_expire": 60, "sep": ":"})
    complete_transport_options(app)

    assert app.conf.broker_transport_options == {**REDIS_TRANSPORT_OPTIONS, "unacked_mutex_expire": 60, "sep": ":"}


def test_the_project_s_dictionary_is_not_changed() -> None:
    """It may be shared with another app."""
    options = {"visibility_timeout": 7200}
    complete_transport_options(preset_app(broker_url="redis://broker/0", broker_transport_options=options))

    assert options == {"visibility_timeout": 7200}


@pytest.mark.parametrize("url", ["amqp://broker//", "sqs://", "memory://"])
def test_other_brokers_get_no_option(url: str) -> None:
    """They read options of the same names in their own way."""
    app = preset_app(broker_url=url)
    complete_transport_options(app)

    assert not app.conf.broker_transport_options


# --- the doors: workers that are wired by one of them alone


def test_the_preset_alone_wires_a_worker(workers: Workers, tmp_path: Path, redis_url: str) -> None:
    """`config_from_object` is all that a project needs; sweeps are prompt, and the visibility timeout is kombu's."""
    told = report(workers, tmp_path, url=redis_url, body=USE_PRESET)

    assert set(told["steps"]) >= STEPS
    assert (told["acks_late"], told["prefetch_multiplier"], told["lease_ttl"]) == (True, 1, 15)
    assert told["sweep"] == list(REDIS_TRANSPORT_OPTIONS.values())
    assert told["visibility_timeout"] == 3600


def test_the_preset_and_a_broker_are_all_that_a_key_needs(workers: Workers, tmp_path: Path, redis_url: str) -> None:
    """No result backend, no address of a store, no other setting: what is submitted again, before or after, runs once."""
    body = """
        from celery_reliable import ReliableTask
        app.config_from_object("celery_reliable.presets")

        @app.task(shared=False, base=ReliableTask, name="charge", idempotency_key="charge:{order}")
        def charge(order):
            with open(os.environ["REPORT"] + ".charges", "a") as file:
                file.write(f"{order}\\n")
    """

    def body_here(order: int) -> None: ...

    charges = tmp_path / "report.json.charges"
    with Celery("project", broker=redis_url, set_as_current=False) as app:
        app.config_from_object(PRESET)
        charge: Any = app.task(shared=False, base=ReliableTask, name="charge", idempotency_key="charge:{order}")(
            body_here
        )
        ids = [charge.delay(7).id for _ in range(2)]
        report(workers, tmp_path, url=redis_url, body=body)
        wait_until(charges.exists, 20, "the first charge")
        ids.append(charge.delay(7).id)
        Celery("bare", broker=redis_url, set_as_current=False).send_task("charge", (7,))
        charge.delay(8)
        wait_until(lambda: charges.read_text().endswith("8\n"), 20, "the last charge")
        forget_runtime(app)

    assert len({*ids}) == 1
    assert charges.read_text() == "7\n8\n"


@pytest.mark.parametrize("overridden", ["imports", "include"])
def test_a_project_s_own_imports_do_not_disarm_us(
    workers: Workers, tmp_path: Path, redis_url: str, overridden: str
) -> None:
    """The preset names us in both lists, and the project's own list is obeyed."""
    (tmp_path / "extra.py").write_text("import os; open(os.environ['REPORT'] + '.extra', 'w').close()")
    told = report(workers, tmp_path, url=redis_url, body=f"{USE_PRESET}\napp.conf.{overridden} = ['extra']")

    assert set(told["steps"]) >= STEPS
    assert (tmp_path / "report.json.extra").exists()


def test_the_command_line_plugin_alone_wires_a_worker(workers: Workers, tmp_path: Path, redis_url: str) -> None:
    """A project that overrides both lists is still wired, as it has reliable_ settings."""
    plugin = tmp_path / "celery_reliable_plugin-1.dist-info"
    plugin.mkdir()
    (plugin / "METADATA").write_text("Metadata-Version: 2.1\nName: celery-reliable-plugin\nVersion: 1\n")
    (plugin / "entry_points.txt").write_text("[celery.commands]\nreliable = celery_reliable.cli:reliable\n")
    told = report(workers, tmp_path, url=redis_url, body=f"{USE_PRESET}\napp.conf.update(imports=(), include=())")

    assert set(told["steps"]) >= STEPS


def test_a_bound_task_alone_wires_a_worker(workers: Workers, tmp_path: Path, redis_url: str) -> None:
    """Without the preset: in time for what a worker reads first, such as its prefetch multiplier."""
    body = """
        from celery_reliable import ReliableTask
        app.conf.reliable_lease_ttl = 77

        @app.task(shared=False, base=ReliableTask)
        def charge(): ...
    """
    told = report(workers, tmp_path, url=redis_url, body=body)

    assert set(told["steps"]) >= STEPS
    assert (told["acks_late"], told["prefetch_multiplier"], told["lease_ttl"]) == (True, 1, 77)


def test_the_command_line_s_prefetch_multiplier_wins(workers: Workers, tmp_path: Path, redis_url: str) -> None:
    """Over the preset's, and over what a project says in its configuration."""
    told = report(workers, tmp_path, url=redis_url, body=USE_PRESET, arguments=["--prefetch-multiplier", "3"])

    assert told["prefetch_multiplier"] == 3


def test_a_worker_made_by_a_program_is_wired_before_it_reads_its_defaults(tmp_path: Path) -> None:
    """No command line, no preset: the project's own configuration names the wiring in its imports."""
    program = """
        from celery import Celery
        app = Celery("made", broker="redis://broker/0")
        app.conf.imports = ["celery_reliable.wiring"]
        print(app.Worker(pool="solo", loglevel="ERROR").prefetch_multiplier)
    """
    run = python(program, cwd=tmp_path, env={})

    assert run.stdout == "1\n", run.stderr


def test_install_alone_wires_an_embedded_worker(tmp_path: Path, redis_url: str) -> None:
    """A worker inside another program, whose app and log Celery makes those of the whole process: so not of this one."""
    program = f"""
        from celery import Celery
        from celery.contrib.testing.worker import start_worker
        from celery_reliable import install

        app = Celery("embedded", broker={redis_url!r})
        app.conf.update(imports=(), include=())
        install(app)
        with start_worker(app, perform_ping_check=False, pool="solo") as worker:
            print(*worker.blueprint.steps, *worker.consumer.blueprint.steps, sep="\\n")
    """
    run = python(program, cwd=tmp_path, env={})

    assert {*run.stdout.splitlines()} >= STEPS, run.stderr


def test_a_project_s_own_consumer_class_keeps_our_steps(workers: Workers, tmp_path: Path, redis_url: str) -> None:
    """And is used."""
    (tmp_path / "consumers.py").write_text(
        "from celery.worker.consumer import Consumer\nclass ShopConsumer(Consumer): pass\n"
    )
    told = report(
        workers, tmp_path, url=redis_url, body=f"{USE_PRESET}\napp.conf.worker_consumer = 'consumers:ShopConsumer'"
    )

    assert told["consumer"] == "ShopConsumer"
    assert set(told["steps"]) >= STEPS


def test_a_project_s_own_transport_options_and_second_configuration_win_in_the_worker(
    workers: Workers, tmp_path: Path, redis_url: str
) -> None:
    """In a worker, where they matter."""
    body = f"""
        {USE_PRESET}
        app.conf.task_acks_late
        app.config_from_object({{
            "task_acks_late": False,
            "reliable_lease_ttl": 9,
            "imports": ["celery_reliable.wiring"],
            "broker_transport_options": {{"visibility_timeout": 7200, "unacked_restore_interval": 2}},
        }})
    """
    told = report(workers, tmp_path, url=redis_url, body=body)

    assert (told["acks_late"], told["lease_ttl"], told["prefetch_multiplier"]) == (False, 9, 1)
    assert told["sweep"] == [2, *list(REDIS_TRANSPORT_OPTIONS.values())[1:]]
    assert told["visibility_timeout"] == 7200


def test_an_app_that_does_not_ask_for_us_is_left_alone(workers: Workers, tmp_path: Path, redis_url: str) -> None:
    """The plug-in is loaded in every celery process of an environment."""
    told = report(workers, tmp_path, url=redis_url, body="import celery_reliable.wiring")

    assert not set(told["steps"]) & STEPS
    assert (told["acks_late"], told["prefetch_multiplier"]) == (False, 4)


def test_beat_wires_an_app_that_asks_for_us(tmp_path: Path) -> None:
    """Beat publishes: it needs our publish retries and serializers as well."""
    app = app_with(imports=["celery_reliable.wiring"], beat_schedule_filename=str(tmp_path / "unused"))
    signals.beat_init.send(sender=Service(app))

    assert app.conf.task_publish_retry_policy == presets.task_publish_retry_policy


# --- wrong settings


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("reliable_leese_ttl = 3", "reliable_leese_ttl: unknown setting, did you mean reliable_lease_ttl?"),
        (
            "reliable_lease_ttl = '15s'",
            "reliable_lease_ttl: expected a number of seconds, at least 3, found '15s' (str)",
        ),
        ("broker_url = 'memory://'", "reliable_store_url: expected a Redis to keep state in, found neither"),
    ],
)
def test_a_worker_with_a_wrong_setting_ends_with_one_message(
    workers: Workers, tmp_path: Path, redis_url: str, setting: str, complaint: str
) -> None:
    """No traceback, exit code 1, before it takes a message."""
    project(tmp_path, f"{USE_PRESET}\napp.conf.{setting}")
    env = {"URL": redis_url, "REPORT": str(tmp_path / "report.json")}
    worker = workers.start("project", pool="solo", cwd=tmp_path, env=env, ready=False)

    assert worker.wait() == 1
    assert complaint in worker.logs()
    assert "Traceback" not in worker.logs()
    assert not (tmp_path / "report.json").exists()


def test_a_worker_does_not_start_on_keys_that_newer_code_has_laid_out(
    workers: Workers, tmp_path: Path, redis_url: str
) -> None:
    """It would misread them: expected, found, remedy, and exit code 1. The first worker has noted the layout."""
    report(workers, tmp_path, url=redis_url, body=USE_PRESET)
    with contextlib.closing(Redis.from_url(redis_url)) as redis:
        assert redis.get("cr:layout") == b"1"
        redis.set("cr:layout", 2)
    (tmp_path / "report.json").unlink()
    env = {"URL": redis_url, "REPORT": str(tmp_path / "report.json")}
    older = workers.start("project", pool="solo", cwd=tmp_path, env=env, ready=False)

    assert older.wait() == 1
    assert re.search(r"\(layout 1\), found layout 2 .*upgrade celery-reliable", older.logs())
    assert "Traceback" not in older.logs()
    assert not (tmp_path / "report.json").exists()


@pytest.mark.parametrize("step", sorted({*WORKER_STEPS} - {"celery_reliable.worker.preflight:Preflight"}))
def test_every_other_worker_step_comes_after_the_check(step: str) -> None:
    """Without the requirement their order is that of a set."""
    assert Preflight in [symbol_by_name(required) for required in symbol_by_name(step).requires]


def test_an_embedded_worker_with_a_wrong_setting_raises_our_error() -> None:
    """A program that embeds a worker can catch it."""
    app = app_with(broker_url="redis://broker/0", reliable_ledger="yes")
    worker = type("Parent", (), {"app": app})()

    with pytest.raises(ConfigurationError, match="reliable_ledger: expected True or False"):
        Preflight(worker)
