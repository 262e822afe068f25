"""Signs of life: what is written, who may write it, and how the probe judges it."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from celery_reliable import probe
from celery_reliable.heartbeats import HeartbeatFile, LifeSign, Process, read_sign

HERE = Process.current()
HOUR = 3600.0
ELSEWHERE = dataclasses.replace(HERE, pid_namespace="pid:[1]")


def sign(**facts: Any) -> LifeSign:
    """A sign of this process, just written."""
    usual: dict[str, Any] = {"role": "worker", "node": "w@h", "state": "idle", "owner": "me", "process": HERE}
    times = {"at": time.time(), "clock": time.monotonic(), "interval": 5.0}
    return LifeSign(**{**usual, **times, **facts})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where the heartbeat file will be."""
    return tmp_path / "heartbeat"


@pytest.fixture
def neighbour() -> Any:
    """Another living process."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        started = probe_started(process.pid)
        yield process, dataclasses.replace(HERE, pid=process.pid, started=started)
        process.kill()


def probe_started(pid: int) -> str:
    """When a process began, as the kernel says."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


def probed(path: Path, *arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and line of the probe."""
    code = probe.main([str(path), *arguments])
    return code, capsys.readouterr().out


# --- the record


def test_a_sign_is_read_as_it_was_written() -> None:
    """Every field, through JSON."""
    written = sign(queues=("a", "b"), pool="prefork", concurrency=2, running=1, received=9, versions={"celery": "5.7"})
    assert LifeSign.from_json(written.to_json()) == written


def test_a_sign_of_a_later_version_is_read() -> None:
    """What this version does not know is left out."""
    facts = json.loads(sign().to_json())
    later = {
        **facts,
        "format": "celery_reliable.heartbeat/2",
        "mood": "fine",
        "process": {**facts["process"], "uid": 7},
    }
    assert LifeSign.from_json(json.dumps(later)).owner == "me"


# --- the file


def test_the_file_is_replaced_as_a_whole(file: Path) -> None:
    """A reader that has it open goes on reading the old sign; nothing is left beside it."""
    heartbeat = HeartbeatFile(file)
    heartbeat.write(sign(state="idle"))
    with file.open() as reader:
        heartbeat.write(sign(state="busy"))
        assert json.loads(reader.read())["state"] == "idle"
    assert read_sign(file).state == "busy"
    assert list(file.parent.iterdir()) == [file]


def test_the_file_of_a_living_process_is_left_to_it(file: Path, neighbour: Any) -> None:
    """It stays whose it is, and is neither written nor removed by the other one; a dead process keeps nothing."""
    process, other = neighbour
    HeartbeatFile(file).write(sign(owner="other", process=other))
    mine = HeartbeatFile(file)
    keeper = mine.write(sign())
    mine.remove()
    assert keeper is not None
    assert [keeper.owner, read_sign(file).owner] == ["other", "other"]

    process.kill()
    process.wait()
    assert mine.write(sign()) is None
    assert read_sign(file).owner == "me"


def test_a_file_of_a_process_out_of_sight_is_left_until_it_stands_still(file: Path) -> None:
    """Another container on the same volume: nobody can see whether it lives but by its signs."""
    other = HeartbeatFile(file)
    mine, began = HeartbeatFile(file), time.monotonic()
    for moment in range(0, 60, 5):
        other.write(sign(owner="other", process=ELSEWHERE, clock=began + moment))
        assert mine.write(sign(clock=began + moment)) is not None
    assert mine.write(sign(clock=began + 69)) is not None
    assert mine.write(sign(clock=began + 71)) is None


def test_only_its_own_file_is_removed(file: Path) -> None:
    """A successor that took the file keeps it; removing twice, or without a write, is no fault."""
    first, second = HeartbeatFile(file), HeartbeatFile(file)
    first.remove()
    first.write(sign(owner="first", process=dataclasses.replace(HERE, started="0")))  # gone by now
    second.write(sign(owner="second"))
    first.remove()
    assert read_sign(file).owner == "second"
    second.remove()
    second.remove()
    assert not file.exists()


@pytest.mark.parametrize("held", ["", "\n", sign().to_json()[:100]])
def test_an_empty_or_cut_off_file_is_replaced(file: Path, held: str) -> None:
    """Of a full disk, or made beforehand."""
    file.write_text(held)
    assert HeartbeatFile(file).write(sign()) is None
    assert read_sign(file).owner == "me"


@pytest.mark.parametrize("held", ["secrets\n", '{"users": []}', "[" * 100_000, "\x00\x80"])
def test_a_file_that_is_something_else_is_never_overwritten(file: Path, held: str) -> None:
    """A mistyped path must not cost anybody a file."""
    file.write_text(held)
    with pytest.raises(FileExistsError, match="left as it is"):
        HeartbeatFile(file).write(sign())
    assert file.read_text() == held


def test_only_regular_files_are_replaced(file: Path) -> None:
    """A pipe would block its reader, and a device is no file to replace."""
    os.mkfifo(file)
    for path in (file, Path("/dev/null"), file.parent):
        with pytest.raises(OSError, match="regular file"):
            HeartbeatFile(path).write(sign())


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    """A missing folder, a file for a folder, and one that is read-only even to root."""
    (tmp_path / "file").touch()
    for path in (tmp_path / "missing" / "h", tmp_path / "file" / "h", Path("/proc/self/h")):
        with pytest.raises(OSError, match=r"No such file|Not a directory|denied|read-only"):
            HeartbeatFile(path).write(sign())


# --- the probe


@pytest.mark.parametrize(
    ("state", "alive", "ready"),
    [
        *((state, 0, 0) for state in ("idle", "consuming", "busy", "leading", "standby")),
        *((state, 0, 3) for state in ("draining", "broker_down", "store_down", "unheard_of")),
        ("stuck", 1, 1),
    ],
)
def test_the_state_decides(file: Path, state: str, alive: int, ready: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit codes of liveness and of readiness."""
    HeartbeatFile(file).write(sign(state=state))
    assert probed(file, capsys=capsys)[0] == alive
    code, line = probed(file, "--ready", capsys=capsys)
    assert code == ready
    assert f"worker w@h is {state}" in line


def test_an_old_sign_is_no_life(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """31 s by default; a shorter age may be asked for, in both spellings."""
    HeartbeatFile(file).write(sign(clock=time.monotonic() - 20))
    assert probed(file, capsys=capsys)[0] == 0
    for arguments in (("--max-age", "10"), ("--max-age=10",)):
        code, line = probed(file, *arguments, capsys=capsys)
        assert code == 1
        assert "s old, expected at most 10" in line
    HeartbeatFile(file).write(sign(clock=time.monotonic() - 31))
    assert probed(file, capsys=capsys)[0] == 1


@pytest.mark.parametrize("jump", [-HOUR, HOUR])
def test_a_jump_of_the_clock_changes_nothing(file: Path, jump: float, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither the date in the sign nor that of the file counts; the age is what passed."""
    for age, code in ((0, 0), (31, 1)):
        HeartbeatFile(file).write(sign(at=time.time() + jump, clock=time.monotonic() - age))
        os.utime(file, (time.time() + jump,) * 2)
        assert probed(file, capsys=capsys)[0] == code


def test_a_sign_of_another_boot_is_no_life(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its clock says nothing here, however young it looks. So does one from the future."""
    HeartbeatFile(file).write(sign(process=dataclasses.replace(HERE, boot_id="before")))
    assert probed(file, capsys=capsys) == (
        1,
        f"not alive: worker w@h is idle: {'written before this boot, or on another host'}\n",
    )
    file.unlink()
    HeartbeatFile(file).write(sign(clock=time.monotonic() + HOUR))
    assert probed(file, capsys=capsys)[0] == 1


def test_a_dead_process_is_noticed_at_once(file: Path, neighbour: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Killed, and a zombie until its parent looks; its id given to another process later."""
    process, other = neighbour
    HeartbeatFile(file).write(sign(process=other))
    assert probed(file, capsys=capsys)[0] == 0
    process.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    code, line = probed(file, capsys=capsys)
    assert (code, "is gone" in line) == (1, True)
    file.unlink()
    HeartbeatFile(file).write(sign(process=dataclasses.replace(HERE, started="1")))
    assert probed(file, capsys=capsys)[0] == 1


def test_a_process_in_another_container_is_judged_by_its_age_alone(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its process id is somebody else's here, or nobody's."""
    HeartbeatFile(file).write(sign(process=dataclasses.replace(ELSEWHERE, pid=2**22 + 1)))
    assert probed(file, capsys=capsys)[0] == 0


WRONG = [
    *(
        "",
        "   \n",
        sign().to_json()[:120],
        '{"format": "celery_reliable.heartbeat/1"}',
        "null",
        "[1]",
        "{}",
        "not JSON",
    ),
    *(json.dumps({**json.loads(sign().to_json()), name: None}) for name in ("clock", "process", "state")),
    *("[" * 100_000, "\x00"),
]


@pytest.mark.parametrize("held", WRONG)
def test_what_is_no_sign_is_told_apart(file: Path, held: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Empty, cut off, foreign: never a traceback."""
    file.write_text(held)
    code, line = probed(file, capsys=capsys)
    assert code == 4
    assert line.startswith(f"no sign of life in {file}: ")


def test_a_missing_file_is_no_sign(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nor is a folder, or a path through a file."""
    (file.parent / "file").touch()
    for path in (file, file.parent, file.parent / "file" / "x"):
        assert probed(path, capsys=capsys)[0] == 4


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["a", "b"],
        ["--max-age"],
        ["a", "--max-age", "x"],
        ["a", "--max-age=0"],
        ["a", "--max-age", "nan"],
        ["--old"],
    ],
)
def test_wrong_arguments_say_what_is_expected(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Code 64: Docker reserves 2."""
    assert probe.main(arguments) == 64
    assert "expected" in capsys.readouterr().err


def test_the_probe_imports_next_to_nothing(file: Path) -> None:
    """Neither Celery nor what makes Python slow to start; it runs as a module and says what it found."""
    HeartbeatFile(file).write(sign())
    code = (
        "import sys, runpy; sys.argv = ['probe', sys.argv[1]]\n"
        "try: runpy.run_module('celery_reliable.probe', run_name='__main__')\n"
        "except SystemExit as exc: assert exc.code == 0, exc.code\n"
        "slow = {'celery', 'kombu', 'redis', 'typing', 'dataclasses', 'inspect', 'pathlib', 'argparse', 'socket'}\n"
        "assert not slow & set(sys.modules), slow & set(sys.modules)\n"
    )
    found = subprocess.run([sys.executable, "-S", "-c", code, str(file)], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.startswith("ok: worker w@h is idle")


def test_the_commands_of_the_documentation_are_understood(file: Path) -> None:
    """Those in Kubernetes, Docker and Compose files, as they stand there."""
    page = (Path(__file__).parents[2] / "docs/how-to/heartbeat.md").read_text()
    commands = re.findall(r"\[(?:CMD, )?\"?python\"?, (.*?)\]", page)
    assert len(commands) == 5
    for command in commands:
        module, path, *options = [word.strip(' "') for word in command.split(",")][1:]
        assert (module, Path(path).parent) == ("celery_reliable.probe", Path("/run/celery"))
        assert probe.main([str(file), *options]) == probe.NO_SIGN
