"""The import job: what it prints, and that it stages."""

import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from services.jobs.bench_packs import tiny
from services.jobs.pack_writer import write_pack
from services.jobs.progress import run
from shared.packs import pack_path, verify


def job(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    """The module as `python -m` runs it."""
    monkeypatch.setattr(sys, "argv", ["import_pack", *map(str, arguments)])
    runpy.run_module("services.jobs.import_pack", run_name="__main__")


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """Its progress."""
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_pack_is_staged_and_its_digest_is_the_last_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each step is one JSON line."""
    digest = write_pack(tiny(), tmp_path / "source")
    job(monkeypatch, pack_path(tmp_path / "source", digest), "--home", tmp_path / "home")
    said = lines(capsys)
    assert [line["step"] for line in said] == ["verify", "copy", "verify_copy", "rename", "staged"]
    assert said[-1]["digest"] == digest
    assert said[-1]["model"] == "tiny"
    verify(pack_path(tmp_path / "home" / "models", digest), digest)


def test_an_altered_pack_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1, the error in the last line, nothing staged."""
    digest = write_pack(tiny(), tmp_path / "source")
    pack = pack_path(tmp_path / "source", digest)
    (pack / "weights.safetensors").chmod(0o644)
    os.truncate(pack / "weights.safetensors", 10)
    with pytest.raises(SystemExit) as caught:
        job(monkeypatch, pack, "--home", tmp_path / "home")
    assert caught.value.code == 1
    last = lines(capsys)[-1]
    assert (last["step"], last["name"]) == ("failed", "PACK_INVALID")
    assert "is 10 bytes" in last["error"]
    assert not (tmp_path / "home").exists()


def test_a_full_disk_is_said_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    """ENOSPC becomes DISK_FULL; any other system error stays a defect."""

    def fill() -> None:
        raise OSError(28, "No space left on device", "models/x")

    with pytest.raises(SystemExit):
        run(fill)
    assert lines(capsys)[-1]["name"] == "DISK_FULL"

    def defect() -> None:
        raise OSError(5, "Input/output error")

    with pytest.raises(OSError, match="Input/output"):
        run(defect)
