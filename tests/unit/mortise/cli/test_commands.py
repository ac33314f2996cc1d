"""Every command against services that answer with the samples of the contract."""

import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from contracts.methods import METHODS
from contracts.samples import sample
from mortise.cli.app import COMMANDS, run
from services.orchestrator.config import access_sample_of
from tests.unit.mortise.fake_server import FakeServer, Step, item, refuse, reply

ROOT = Path(__file__).parents[4]
DIGEST = "sha256:" + "0" * 64
TRACE = "0" * 32
CALLS: dict[str, tuple[str, list[str], str, Any]] = {
    # name: (service, command line, method called, body sent)
    "models": ("orchestrator", ["models"], "models", {}),
    "policies": ("control_plane", ["policies"], "policies", {}),
    "policies of a version": ("control_plane", ["policies", "--at", "3"], "policies", {"at": 3}),
    "policies at an instant": (
        "control_plane",
        ["policies", "--at", "2013-01-01T00:00:00Z"],
        "policies",
        {"at": "2013-01-01T00:00:00Z"},
    ),
    "commits": ("control_plane", ["commits"], "commits", {"after": 0, "limit": 100}),
    "diff": ("control_plane", ["diff", "1", "2"], "diff", {"since": 1, "until": 2}),
    "verify": ("control_plane", ["verify"], "verify", {}),
    "trace": ("control_plane", ["trace", TRACE], "trace", {"trace_id": TRACE}),
    "snapshot": (
        "control_plane",
        ["snapshot", "--model", "delay", "--trace", TRACE],
        "snapshot",
        {"model": "delay", "trace_id": TRACE},
    ),
    "publish": (
        "control_plane",
        ["publish", DIGEST, "--alias", "stable"],
        "publish",
        {"digest": DIGEST, "author": "me", "alias": "stable"},
    ),
    "promote": (
        "control_plane",
        ["promote", "delay", "2", "--reason", "better"],
        "promote",
        {"model": "delay", "version": "2", "author": "me", "reason": "better"},
    ),
    "rollback": (
        "control_plane",
        ["rollback", "delay"],
        "rollback",
        {"model": "delay", "author": "me"},
    ),
    "remove": (
        "control_plane",
        ["remove", "split", "delay", "--author", "me"],
        "apply",
        {
            "policies": [],
            "remove": [{"kind": "split", "name": "delay"}],
            "author": "me",
            "reason": "remove",
        },
    ),
    "rollback of the state": (
        "control_plane",
        ["rollback", "--to", "3"],
        "rollback",
        {"to": 3, "author": "me"},
    ),
    "features": ("data_fabric", ["features", "show"], "views", {}),
    "call": ("data_fabric", ["call", "views"], "views", {}),
    "call with a body": (
        "control_plane",
        ["call", "commits", '{"limit": 5}'],
        "commits",
        {"limit": 5},
    ),
}


def answers(service: str) -> Any:
    """A service that answers every method with its sample, after one item where it streams."""

    def behaviour(number: int, frame: list[Any]) -> Iterable[Step]:
        row = METHODS[service][frame[2]]
        if row.item is not None and frame[3][1].get("stream"):
            yield item(frame, 0, sample(row.item))
        yield reply(frame, sample(row.response))

    return behaviour


@pytest.fixture(autouse=True)
def _author(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "me")


@pytest.mark.parametrize("as_json", [False, True], ids=["table", "json"])
@pytest.mark.parametrize(("service", "line", "method", "body"), CALLS.values(), ids=CALLS)
def test_a_command_calls_its_method(
    service: str,
    line: list[str],
    method: str,
    body: Any,
    as_json: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The body is as the contract wants it; the answer is shown whole, as JSON or for people."""
    with FakeServer(answers(service), service=service) as server:
        code = run([*line, "--home", str(server.home), *(["--json"] if as_json else [])])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    assert [frame[2] for frame in server.requests] == [method]
    assert server.requests[0][3][0] == body
    assert captured.out
    if as_json and "show" not in line:
        assert json.loads(captured.out).keys() == sample(METHODS[service][method].response).keys()


INFER: dict[str, tuple[list[str], str, Any]] = {
    "rows": (["--rows", '[{"a": 1}]'], "rows", [{"a": 1}]),
    "one row": (["--rows", '{"a": 1}'], "rows", [{"a": 1}]),
    "rows of a file": (["--rows", "@rows.json"], "rows", [{"a": 2}]),
    "rows of standard input": (["--rows", "-"], "rows", [{"a": 3}]),
    "text": (["--text", "hello there"], "text", ["hello there"]),
    "texts": (["--text", '["a", "b"]'], "text", ["a", "b"]),
    "inputs": (
        ["--inputs", '{"x": [[1.5]]}'],
        "inputs",
        [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": bytes.fromhex("0000c03f")}],
    ),
}


@pytest.mark.parametrize(("arguments", "field", "value"), INFER.values(), ids=INFER)
def test_infer_sends_what_was_given(
    arguments: list[str],
    field: str,
    value: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Rows, inputs and text come from the line, a file or standard input."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.json").write_text('[{"a": 2}]')
    monkeypatch.setattr("sys.stdin", io.StringIO('[{"a": 3}]'))
    options = ["--version", "stable", "--tenant", "t", "--risk", "1", "--json"]
    with FakeServer(answers("orchestrator")) as server:
        code = run(["infer", "delay", *arguments, *options, "--home", str(server.home)])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    body = server.requests[0][3][0]
    assert body[field] == value
    assert {name: body[name] for name in ("model_version", "tenant_id", "risk_level")} == {
        "model_version": "stable", "tenant_id": "t", "risk_level": 1,
    }  # fmt: skip
    assert json.loads(captured.out)["outputs"][0]["data"] == [0.5, -1.0]


def test_a_prediction_is_readable(capsys: pytest.CaptureFixture[str]) -> None:
    """Label, confidence, action, times, lineage and trace id are on the page."""
    with FakeServer(answers("orchestrator")) as server:
        assert run(["infer", "delay", "--rows", "[]", "--home", str(server.home), "--stream"]) == 0
    shown = capsys.readouterr().out
    answer = sample(METHODS["orchestrator"]["infer"].response)
    for part in ("label", "action", "forward", "weights", answer["trace_id"], "degraded"):
        assert part in shown
    assert answer["lineage"]["weights"] not in shown
    assert answer["lineage"]["weights"][:19] in shown
    assert "--json shows them whole" in shown


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_a_record_cannot_forge_another(
    as_json: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One record is one line, whatever its text; as JSON it is the same record."""
    (tmp_path / ".mortise/log").mkdir(parents=True)
    record = {"at": "2026", "event": "a\nb\x1b[2J\x9b\u2028c"}
    (tmp_path / ".mortise/log/x.0.jsonl").write_text(json.dumps(record) + "\n")
    assert run(["logs", "--home", str(tmp_path), *(["--json"] if as_json else [])]) == 0
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) == 1
    assert not set(shown) & {"\x1b", "\x9b"}
    assert not as_json or json.loads(shown) == record


def test_rows_keep_their_number_when_others_failed(capsys: pytest.CaptureFixture[str]) -> None:
    """A prediction stands under the number its row has in the request; a failed row is named."""
    whole = sample(METHODS["orchestrator"]["infer"].response)
    error = {"name": "FEATURE_INVALID", "message": "no\x1b[2J", "code": 201, "trace_id": ""}
    items = [{"status": error | {"retryable": False}}, {"status": "ok"}]

    def behaviour(number: int, frame: list[Any]) -> Iterable[Step]:
        yield reply(frame, whole | {"items": items})

    with FakeServer(behaviour) as server:
        assert run(["infer", "delay", "--rows", "[]", "--home", str(server.home)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[:2] == ["1", "label"]
    assert "row 0: FEATURE_INVALID: no\\x1b[2J" in lines, "a terminal is not steered"


USAGE = {
    "no such command": (["nonsense"], "nonsense"),
    "no such option": (["models", "--nonsense"], "nonsense"),
    "missing argument": (["trace"], "TRACE_ID"),
    "not JSON": (["call", "ping", "{"], "the body is not JSON"),
    "not a map": (["call", "ping", "[]"], "must be a JSON map, not list"),
    "no such service": (["call", "ping", "--service", "x"], "no service 'x'"),
    "no such file": (["infer", "delay", "--rows", "@nowhere"], "cannot read @nowhere"),
    "nothing to infer": (["infer", "delay"], "exactly one of --rows"),
    "two forms": (["infer", "delay", "--rows", "[]", "--text", "a"], "exactly one of --rows"),
    "ragged inputs": (["infer", "delay", "--inputs", '{"x": [[1], [1, 2]]}'], "ragged"),
    "rows are no list": (["infer", "delay", "--rows", '"a"'], "--rows must be a JSON list"),
    "no target": (["rollback"], "either a model or --to"),
    "no policies": (["apply", "nowhere.toml"], "nowhere.toml"),
}


@pytest.mark.parametrize(("line", "reason"), USAGE.values(), ids=USAGE)
def test_wrong_usage_is_exit_code_2(
    line: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is called, and standard error says what is wrong."""
    assert run([*line, "--home", "/nowhere"]) == 2
    captured = capsys.readouterr()
    assert reason.lower() in captured.err.lower()
    assert captured.out == ""


def test_a_mesh_that_is_down_is_exit_code_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the line that starts it, or that makes the home where there is none."""
    (tmp_path / "mortise.toml").write_text("home_version = 1")
    assert run(["models", "--home", str(tmp_path)]) == 3
    captured = capsys.readouterr()
    assert captured.err.startswith(f"UNAVAILABLE: nothing listens at {tmp_path}/.mortise/run/")
    assert f"→ mortise start --detach --home {tmp_path}\n" in captured.err
    assert captured.out == ""


@pytest.mark.parametrize("command", ["status", "stop"])
def test_a_mesh_that_does_not_run_is_exit_code_3(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`status` and `stop` name the line that starts it."""
    run(["init", str(tmp_path)])
    assert run([command, "--home", str(tmp_path)]) == 3
    assert f"mortise start --detach --home {tmp_path}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        ["start"],
        ["status"],
        ["stop"],
        ["restart", "orchestrator"],
        ["models"],
        ["logs"],
        ["infer", "delay", "--rows", "[]"],
        ["trace", TRACE],
        ["policies"],
        ["features", "show"],
    ],
    ids=lambda line: line[0],
)
def test_without_a_home_the_init_line_is_printed(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder that is no home is the same error for every command, with the exact remedy."""
    assert run([*command, "--home", str(tmp_path)]) == 1
    captured = capsys.readouterr().err
    assert captured.startswith(f"HOME_INVALID: no home at {tmp_path} ")
    assert f"mortise init {tmp_path}" in captured


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_an_error_has_its_name_and_a_remedy(
    as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """On standard error, exit code 1, also as JSON; standard output stays empty."""

    def behaviour(number: int, frame: list[Any]) -> Iterable[Step]:
        yield refuse(frame, "INTERNAL", 901, trace_id=TRACE)

    with FakeServer(behaviour) as server:
        home = str(server.home)
        assert run(["models", "--home", home, *(["--json"] if as_json else [])]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    remedy = f"a defect of ours; the log has it: mortise logs --home {home} --trace {TRACE}"
    if as_json:
        error = json.loads(captured.err)["error"]
        assert (error["name"], error["code"], error["remedy"]) == ("INTERNAL", 901, remedy)
    else:
        assert captured.err == f"INTERNAL: no\n  → {remedy}\n"


def test_every_command_speaks_json(capsys: pytest.CaptureFixture[str]) -> None:
    """`--json` and `--home` are options of each, sub-commands included."""
    lines = [[name] for _, commands in COMMANDS.values() for name in commands]
    lines = [line for line in lines if line not in (["contracts"], ["features"])]
    lines += [["contracts", name] for name in ("show", "sign", "check", "verify")] + [
        ["features", "show"]
    ]
    for line in lines:
        run([*line, "--help"])
        shown = capsys.readouterr().out
        assert "--json" in shown, line
        assert "--home" in shown, line


APPLIED = [{"kind": "batching", "name": "delay", "spec": {"wait_ms": 5}}]


@pytest.mark.parametrize("name", ["p.toml", "p.json"])
def test_apply_reads_both_forms(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """TOML as policies.toml, or the JSON of the method."""
    toml = '[[policy]]\nkind = "batching"\nname = "delay"\n[policy.spec]\nwait_ms = 5\n'
    (tmp_path / name).write_text(toml if name == "p.toml" else json.dumps(APPLIED))
    with FakeServer(answers("control_plane"), service="control_plane") as server:
        line = ["apply", str(tmp_path / name), "--reason", "faster", "--expected-version", "4"]
        assert run([*line, "--home", str(server.home)]) == 0
    assert server.requests[0][3][0] == {
        "policies": APPLIED, "author": "me", "reason": "faster", "expected_version": 4,
    }  # fmt: skip
    assert "is active" in capsys.readouterr().out


def test_apply_of_what_is_in_force_says_that_nothing_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In words, and as a field of the JSON; an older control plane does not tell."""
    (tmp_path / "p.json").write_text(json.dumps(APPLIED))
    whole = sample(METHODS["control_plane"]["apply"].response)
    older = {name: value for name, value in whole.items() if name != "changed"}
    for answer, words in (({**whole, "changed": False}, "nothing changed"), (older, "is active")):

        def behaviour(
            number: int, frame: list[Any], answer: dict[str, Any] = answer
        ) -> Iterable[Step]:
            yield reply(frame, answer)

        with FakeServer(behaviour, service="control_plane") as server:
            line = ["apply", str(tmp_path / "p.json"), "--home", str(server.home)]
            assert run(line) == 0
            assert words in capsys.readouterr().out
            assert run([*line, "--json"]) == 0
            assert json.loads(capsys.readouterr().out) == answer


def test_the_trace_of_a_refused_request_has_no_combination(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Refused before a model was chosen: status, times and hops are still shown."""
    whole = sample(METHODS["control_plane"]["trace"].response)
    refused = {name: value for name, value in whole.items() if name != "combination"}

    def behaviour(number: int, frame: list[Any]) -> Iterable[Step]:
        yield reply(frame, refused)

    with FakeServer(behaviour, service="control_plane") as server:
        assert run(["trace", TRACE, "--home", str(server.home)]) == 0
    assert "tenant_id" in capsys.readouterr().out


def test_snapshot_names_the_digest_that_answers_carry(capsys: pytest.CaptureFixture[str]) -> None:
    """The line `snapshot` is the lineage's; `data` cannot be taken for the lineage's own."""
    answer = sample(METHODS["control_plane"]["snapshot"].response)
    (name,) = answer["versions"]
    combination = next(iter(answer["combinations"].values()))
    combination["lineage"]["snapshot"] = "sha256:" + "5" * 64

    def behaviour(number: int, frame: list[Any]) -> Iterable[Step]:
        yield reply(frame, answer | {"combinations": {name: combination}})

    with FakeServer(behaviour, service="control_plane") as server:
        assert run(["snapshot", "--home", str(server.home)]) == 0
    shown = [line.rpartition(" ") for line in capsys.readouterr().out.splitlines()]
    found = {label.strip(): digest for label, _, digest in shown}
    assert found["snapshot"] == combination["lineage"]["snapshot"]
    assert found["data + feature_code"] == answer["versions"][name]["data"]
    assert "data" not in found


def test_snapshot_writes_the_version_file(tmp_path: Path) -> None:
    """`.ai-version` is JSON with exactly data, model, infra and policy."""
    file = tmp_path / ".ai-version"
    with FakeServer(answers("control_plane"), service="control_plane") as server:
        run(["snapshot", "--write", str(file), "--home", str(server.home)])
    assert json.loads(file.read_text()).keys() == {"data", "model", "infra", "policy"}


def test_publish_stages_a_pack_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder is verified and copied into the home's models, then published by its digest."""
    (pack, *_) = (ROOT / "examples/bench/models").iterdir()
    (tmp_path / "empty").mkdir()
    with FakeServer(answers("control_plane"), service="control_plane") as server:
        home = ["--home", str(server.home)]
        assert run(["publish", str(pack), *home]) == 0
        assert server.requests[0][3][0]["digest"] == f"sha256:{pack.name}"
        assert (server.home / "models" / pack.name / "manifest.json").is_file()
        assert run(["publish", str(tmp_path / "empty"), *home]) == 1
        (tmp_path / "empty/manifest.json").write_text("{}")
        assert run(["publish", str(tmp_path / "empty"), *home]) == 1
    errors = capsys.readouterr().err
    assert "it has no manifest.json" in errors
    assert "→ build or copy the pack again" in errors


def test_init_makes_a_home(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It prints the line that starts it, and refuses a folder that is used."""
    target = tmp_path / "home"
    assert run(["init", str(target), "--example", "bench"]) == 0
    assert f"mortise start --detach --home {target}" in capsys.readouterr().out
    assert run(["init", str(target)]) == 1
    assert "HOME_EXISTS" in capsys.readouterr().err
    assert run(["init", str(tmp_path / "other"), "--example", "nonsense"]) == 2


def test_logs_are_merged_in_the_order_of_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of all processes, rotated files too; --trace keeps one request's; torn lines are left."""
    folder = tmp_path / ".mortise/log"
    folder.mkdir(parents=True)
    records = [
        {"at": f"2026-01-01T00:00:0{n}", "level": "info", "instance": "x", "event": f"e{n}"}
        | {"trace_id": TRACE}
        for n in "0123"
    ]
    lines = [json.dumps(record) + "\n" for record in records]
    (folder / "orchestrator.0.jsonl.1").write_text(lines[0])
    (folder / "orchestrator.0.jsonl").write_text(lines[2] + '{"at": "2026')
    (folder / "control_plane.0.jsonl").write_text(lines[1] + lines[3].replace(TRACE, "1" * 32))
    (folder / "control_plane.0.jsonl.lock").touch()
    assert run(["logs", "--json", "--home", str(tmp_path)]) == 0
    shown = [json.loads(line)["event"] for line in capsys.readouterr().out.splitlines()]
    assert shown == ["e0", "e1", "e2", "e3"]
    assert run(["logs", "--trace", TRACE, "--lines", "2", "--home", str(tmp_path)]) == 0
    shown = [line.split()[3] for line in capsys.readouterr().out.splitlines()]
    assert shown == ["e1", "e2"]


def test_logs_of_nobody_are_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unknown service is told the valid names; an empty log of a known one is no error."""
    (tmp_path / ".mortise/log").mkdir(parents=True)
    assert run(["logs", "--service", "superviser", "--home", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    for name in (*METHODS, "supervisor", "'superviser'"):
        assert name in error
    for name in (*METHODS, "supervisor"):
        assert run(["logs", "--service", name, "--home", str(tmp_path)]) == 0
    assert capsys.readouterr() == ("", "")


def test_logs_of_an_unrecorded_trace_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On standard error, with the sampling that is in force; standard output stays empty."""
    (tmp_path / ".mortise/log").mkdir(parents=True)
    assert run(["logs", "--trace", TRACE, "--home", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"no record has the trace id {TRACE}" in captured.err
    assert f"1 in access_sample_of, {access_sample_of:,}" in captured.err


def test_a_rollback_says_where_it_went(capsys: pytest.CaptureFixture[str]) -> None:
    """Model, from and to; what the next one does; the split that still sends requests elsewhere,
    with the command that removes it."""
    whole = sample(METHODS["control_plane"]["rollback"].response)
    split = {"kind": "split", "name": "delay", "detail": "90 % to version 2"}
    told = whole | {
        "model": "delay", "from_version": "2", "to_version": "1", "diverted_by": [split],
    }  # fmt: skip

    def behaviour(number: int, frame: list[Any]) -> Iterable[Step]:
        yield reply(frame, told)

    with FakeServer(behaviour, service="control_plane") as server:
        home = str(server.home)
        assert run(["rollback", "delay", "--home", home]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "delay is back on version 1 (from version 2)"
    assert lines[1] == f"forward again to version 2: mortise rollback --home {home} delay"
    assert lines[3] == "but split delay still sends requests: 90 % to version 2"
    assert f"mortise remove --home {home} split delay" in lines[4]


def test_a_promotion_names_the_split_that_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    """It is active, but not for everybody."""
    whole = sample(METHODS["control_plane"]["promote"].response)
    split = {"kind": "split", "name": "delay", "detail": "90 % to version 1"}

    def behaviour(number: int, frame: list[Any]) -> Iterable[Step]:
        yield reply(frame, whole | {"from_version": "1", "diverted_by": [split]})

    with FakeServer(behaviour, service="control_plane") as server:
        assert run(["promote", "delay", "2", "--home", str(server.home)]) == 0
    shown = capsys.readouterr().out
    assert "delay version 2 is active" in shown
    assert "(before: version 1)" in shown
    assert "but split delay still sends requests: 90 % to version 1" in shown


def test_a_snapshot_shows_the_shares_of_a_split(capsys: pytest.CaptureFixture[str]) -> None:
    """Version, share and snapshot of each, and why one has no digests."""
    whole = sample(METHODS["control_plane"]["snapshot"].response)
    combination = next(iter(whole["combinations"].values()))
    shares = [
        {"version": "1", "slots": 9_000_000, "combination": combination},
        {"version": "2", "slots": 1_000_000},
    ]

    def behaviour(number: int, frame: list[Any]) -> Iterable[Step]:
        yield reply(frame, whole | {"shares": {"delay": shares}})

    with FakeServer(behaviour, service="control_plane") as server:
        assert run(["snapshot", "--home", str(server.home)]) == 0
    shown = capsys.readouterr().out
    (first,) = (line for line in shown.splitlines() if line.startswith("version 1 "))
    (second,) = (line for line in shown.splitlines() if line.startswith("version 2 "))
    assert "90 %" in first
    assert combination["lineage"]["snapshot"] in first
    assert "10 %" in second
    assert "not known yet" in second
