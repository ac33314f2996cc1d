"""Faults that a newcomer met at the command line, each under its name."""

import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from contracts.methods import METHODS
from contracts.samples import sample
from mortise.addresses import socket_path
from mortise.cli import logs as logs_module
from mortise.cli.app import run
from mortise.requests import new_call, request_frame
from mortise.wire import pack
from tests.unit.mortise.fake_server import FakeServer, Step, refuse, reply

ROOT = Path(__file__).parents[4]
TRACE = "0" * 32
BEYOND: dict[str, tuple[list[str], str]] = {
    "an integer beyond 64 bits in rows": (
        ["infer", "delay", "--rows", '[{"flight": 18446744073709551616}]'],
        "--rows[0].flight is 18446744073709551616; an integer is −2⁶³ … 2⁶⁴−1",
    ),
    "an integer below 64 bits in a body": (
        ["call", "commits", '{"after": -9223372036854775809}'],
        "the body.after is -9223372036854775809",
    ),
    "thousands of digits": (
        ["infer", "delay", "--rows", f'[{{"flight": {"9" * 5000}}}]'],
        "--rows goes beyond what can be sent",
    ),
    "a lone surrogate in rows": (
        ["infer", "delay", "--rows", '[{"carrier": "\\ud800"}]'],
        "--rows[0].carrier is not valid Unicode text: lone surrogate (U+D800) at character 0",
    ),
    "a lone surrogate in a key": (
        ["call", "ping", '{"\\udfff": 1}'],
        "a key of the body is not valid Unicode text",
    ),
    "an undecodable text": (
        ["infer", "delay", "--text", "ab\udcff"],
        "--text is not valid Unicode text: byte 0xff (U+DCFF) at character 2",
    ),
    "an undecodable argument": (["trace", "\udcfe"], "argument 2 is not valid Unicode text"),
    "a lone surrogate in a list of texts": (
        ["infer", "delay", "--text", '["a", "\\ud800"]'],
        "--text[1] is not valid Unicode text",
    ),
    "nested two hundred times": (
        ["call", "ping", '{"a": ' + "[" * 200 + "]" * 200 + "}"],
        "is nested too deeply: at most 100",
    ),
    "a float beyond FP32": (["infer", "delay", "--inputs", '{"x": [1e300]}'], "--inputs: "),
    "no time": (["infer", "delay", "--rows", "[]", "--timeout", "0"], "more than 0"),
    "negative time": (["call", "ping", "--timeout", "-1"], "more than 0"),
    "no number of seconds": (["call", "ping", "--timeout", "nan"], "more than 0"),
    "more than a day": (["promote", "delay", "1", "--timeout", "86401"], "at most 86400"),
    "restart of a process that is none": (["restart", "nosuch"], "no process 'nosuch'"),
}


@pytest.mark.parametrize(("line", "reason"), BEYOND.values(), ids=BEYOND)
def test_what_cannot_be_sent_is_wrong_usage(
    line: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 with field and limit, and no traceback."""
    assert run([*line, "--home", "/nowhere"]) == 2
    captured = capsys.readouterr().err
    assert reason in " ".join(captured.replace("│", " ").split())


def test_wrong_usage_names_the_help_of_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    """The remedy is a line to paste, not a placeholder."""
    run(["infer", "delay"])
    assert "→ mortise infer --help\n" in capsys.readouterr().err


POLICY_FILES = {
    "empty": ("", "has no [[policy]]"),
    "other keys": ('[[policies]]\nkind = "x"\n', "has no [[policy]], only policies"),
    "one more key": ("x = 1\n[[policy]]\n", "holds more than [[policy]]: x"),
    "an integer beyond 64 bits": ("[[policy]]\nspec = {a = 99999999999999999999}\n", "[0].spec.a"),
    "a time of day": ("[[policy]]\nspec = {a = 07:32:00}\n", "is a time, which cannot be sent"),
}


@pytest.mark.parametrize(("text", "reason"), POLICY_FILES.values(), ids=POLICY_FILES)
def test_a_file_without_policies_is_wrong_usage(
    text: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file is named, and what it lacks."""
    file = tmp_path / "p.toml"
    file.write_text(text)
    assert run(["apply", str(file), "--home", "/nowhere"]) == 2
    captured = capsys.readouterr().err
    assert reason in captured


def failed(details: dict[str, Any]) -> Any:
    """A service that lets every deadline pass."""

    def behaviour(number: int, frame: list[Any]) -> Iterable[Step]:
        yield refuse(frame, "DEADLINE_EXCEEDED", 462, trace_id=TRACE, details=details)

    return behaviour


def test_a_passed_deadline_names_the_hop_it_carries(capsys: pytest.CaptureFixture[str]) -> None:
    """The remedy has hop and stage from the error, else the log; never a trace that may not be."""
    with FakeServer(failed({"hop": "data_fabric", "stage": "features"})) as server:
        home = str(server.home)
        assert run(["infer", "delay", "--rows", "[]", "--home", home]) == 1
    captured = capsys.readouterr().err
    assert "it ran out at data_fabric (stage features)" in captured
    with FakeServer(failed({})) as server:
        home = str(server.home)
        assert run(["infer", "delay", "--rows", "[]", "--home", home]) == 1
    captured = capsys.readouterr().err
    assert f"mortise logs --home {home} --trace {TRACE}" in captured


def test_a_deadline_below_a_millisecond_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """It goes out as a whole one and not as expired, and the error says what was allowed."""
    call = new_call("orchestrator", "infer", pack({}), TRACE, 0.0005)
    frame = msgpack.unpackb(request_frame(1, call, 0.0004, asks_items=False))
    assert frame[3][1]["deadline_ms"] == 1
    with FakeServer(failed({})) as server:
        line = ["infer", "delay", "--rows", "[]", "--timeout", "0.0005"]
        run([*line, "--home", str(server.home)])
    captured = capsys.readouterr().err
    assert "0.5 ms)" in captured or "0.0005 s" in captured


class Closed(io.StringIO):
    """Standard output whose reader has gone."""

    def flush(self) -> None:
        """As the kernel answers."""
        raise BrokenPipeError

    def fileno(self) -> int:
        """Nothing to redirect."""
        raise io.UnsupportedOperation


def test_a_reader_that_leaves_costs_no_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A finished command keeps its exit code, and nothing is said."""
    run(["init", str(tmp_path / "home")])
    monkeypatch.setattr("sys.stdout", Closed())
    assert run(["doctor", "--json", "--home", str(tmp_path / "nowhere")]) == 1
    assert run(["contracts", "show", "--json"]) == 0
    assert capsys.readouterr().err == ""


def test_a_reader_that_leaves_midway_is_told_by_141(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The shell's number for SIGPIPE."""

    class Gone(Closed):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr("sys.stdout", Gone())
    for line in (["contracts", "show"], ["contracts", "show", "--json"], ["--help"]):
        assert run(line) == 141, line
    assert capsys.readouterr().err == ""


def unreadable(*names: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of these names cannot be opened, whoever we are."""
    opened = io.open
    listed = os.listdir

    def refused(path: Any, *rest: Any, **more: Any) -> Any:
        if Path(path).name in names if not isinstance(path, int) else False:
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *rest, **more)

    def unlisted(path: Any = ".") -> Any:
        if Path(path).name in names:
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr("io.open", refused)
    monkeypatch.setattr("os.listdir", unlisted)


@pytest.mark.parametrize("command", ["status", "stop", "models", "start"])
def test_an_unreadable_file_is_not_a_missing_home(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Permission denied is said as that, with its remedy."""
    (tmp_path / "mortise.toml").write_text("home_version = 1")
    unreadable("mortise.toml", monkeypatch=monkeypatch)
    assert run([command, "--home", str(tmp_path)]) == 1
    captured = capsys.readouterr().err
    assert f"{tmp_path}/mortise.toml cannot be read: Permission denied" in captured
    assert "use the home as its owner" in captured


@pytest.mark.parametrize("name", ["home", "x.0.jsonl"])
def test_unreadable_logs_are_an_error_with_a_remedy(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither the folder nor a file of it ends in a traceback."""
    home = tmp_path / "home"
    home.mkdir()
    if name != "home":
        (home / ".mortise/log").mkdir(parents=True)
        (home / ".mortise/log" / name).write_text("{}\n")
    unreadable(name, monkeypatch=monkeypatch)
    assert run(["logs", "--home", str(home)]) == 1
    captured = capsys.readouterr().err
    assert "cannot be read: Permission denied" in captured
    assert "→ read the logs as the owner of the home" in captured


def test_a_typo_does_not_hide_a_running_mesh_from_clients() -> None:
    """While mortise.toml is broken, the sockets are where the supervisor left them."""

    def behaviour(number: int, frame: list[Any]) -> Iterable[Step]:
        yield reply(frame, sample(METHODS["orchestrator"]["models"].response))

    with FakeServer(behaviour) as server:
        (server.home / "mortise.toml").write_text("runtime = [")
        assert run(["models", "--home", str(server.home)]) == 1, "nobody says where it runs"
        (server.home / ".mortise/run_dir").write_text(".mortise/run")
        assert run(["models", "--home", str(server.home)]) == 0
        assert socket_path(server.home, "orchestrator") == str(server.path)


@pytest.fixture
def log_home(tmp_path: Path) -> Iterator[Path]:
    """A home with three records of two services."""
    folder = tmp_path / ".mortise/log"
    folder.mkdir(parents=True)
    one, other = "orchestrator", "control_plane"
    for service, level, number in ((one, "info", 1), (other, "error", 2), (one, "error", 3)):
        record = {"at": f"2026-01-01T00:00:0{number}", "level": level, "service": service}
        more = {"instance": "x", "event": f"e{number}", "trace_id": "-", "one": {"k": None}}
        with (folder / f"{service}.0.jsonl").open("a") as file:
            file.write(json.dumps(record | more) + "\n")
    yield tmp_path
    shutil.rmtree(folder)


def test_logs_of_one_service_and_level(log_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both filters hold at once; maps are JSON, and an id that is not there is not shown."""
    line = ["logs", "--service", "orchestrator", "--level", "warning", "--home", str(log_home)]
    assert run(line) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown == ['2026-01-01T00:00:03 error   x e3 one={"k": null}']
    assert run(["logs", "--level", "nonsense", "--home", str(log_home)]) == 2


def test_logs_are_followed_until_ctrl_c(
    log_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A record that is appended is shown once, a torn one when it is whole, also in a new file."""
    appended = iter(("new", "torn", "whole", None))
    file = log_home / ".mortise/log/c.0.jsonl"

    def step(seconds: float) -> None:
        match next(appended):
            case "new":
                file.write_text('{"event": "e4"}\n')
            case "torn":
                file.write_text(file.read_text() + '{"event": ')
            case "whole":
                file.write_text(file.read_text() + '"e5"}\n')
            case None:
                raise KeyboardInterrupt

    monkeypatch.setattr(logs_module.time, "sleep", step)
    assert run(["logs", "--lines", "1", "--follow", "--json", "--home", str(log_home)]) == 130
    captured = capsys.readouterr()
    shown = [json.loads(line)["event"] for line in captured.out.splitlines()]
    assert shown == ["e3", "e4", "e5"]
    assert captured.err == "stopped\n"


def test_the_example_says_what_to_do_without_a_mesh(tmp_path: Path) -> None:
    """`client.py` in a folder that is no home: the remedy below the error, without a traceback."""
    (tmp_path / "something").touch()
    done = subprocess.run(
        [sys.executable, ROOT / "examples/flights/client.py"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
        capture_output=True, text=True, timeout=20,
    )  # fmt: skip
    assert done.returncode == 1
    assert f"or: mortise init {tmp_path}/demo --example flights\n" in done.stderr
    assert "Traceback" not in done.stderr


STATUS = {
    "running": True, "state": "degraded", "pid": 5, "uptime_s": 900.0,
    "children": [
        {
            "service": "data_fabric", "index": 0, "condition": "up", "ready": True,
            "policy_version": 1, "pid": 7, "instance": "data_fabric.0-0123abcd",
            "uptime_s": 800.0, "active_s": 3.0, "restarts": 1, "last_ending": "signal 9",
            "standby": {"pid": None, "state": "starting"}, "reasons": [],
        },
        {
            "service": "control_plane", "index": 0, "condition": "waiting", "ready": False,
            "policy_version": 0, "pid": None, "instance": "", "uptime_s": 0.0, "active_s": 0.0,
            "restarts": 2, "last_ending": "exit code 1", "standby": None, "reasons": ["a"],
        },
    ],
}  # fmt: skip


def test_status_names_instances_and_their_endings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the logs name them, with the seconds since they took over; no pid where none runs."""
    monkeypatch.setattr("supervisor.run.status", lambda home: STATUS)
    assert run(["status"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[2:] == [
        "data_fabric.0-0123abcd up yes 1 7 3 1 signal 9 starting",
        "control_plane.0 waiting no 0 0 2 exit code 1 a",
    ]


def test_doctor_says_that_there_is_no_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the current folder; one that was named is checked, and fails."""
    monkeypatch.chdir(tmp_path)
    run(["doctor"])
    assert "no home here" in capsys.readouterr().out
    assert run(["doctor", "--home", str(tmp_path)]) == 1
