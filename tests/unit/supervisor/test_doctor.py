"""The checks of `doctor`: what they find, and that every bad finding has a fix."""

import os
from pathlib import Path

import pytest

from supervisor import doctor_machine
from supervisor.doctor import Finding, doctor
from supervisor.doctor_machine import CHECKS

SOUND = ("home", "home access", "socket paths", "home mode")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A sound home, the owner's alone."""
    (tmp_path / "mortise.toml").write_text("home_version = 1\n")
    tmp_path.chmod(0o700)
    return tmp_path


def of(home: Path, check: str) -> Finding:
    """One finding of a home."""
    return next(finding for finding in doctor(home) if finding.check == check)


def test_every_check_answers_and_every_bad_one_has_a_fix() -> None:
    """Whatever this machine is, each check of it returns; a warning or failure says what to do."""
    findings = doctor()
    assert len(findings) == len(CHECKS) + 1, "and that there is no home here"
    assert findings[-1].found.startswith("no home here")
    assert all(finding.fix for finding in findings if finding.level == "fail")
    assert {finding.as_map().keys() == {"check", "level", "found", "fix"} for finding in findings}


def test_a_sound_home_passes(home: Path) -> None:
    """File, socket paths and mode are fine."""
    assert {of(home, check).level for check in SOUND} == {"ok"}


def test_a_broken_file_fails(home: Path) -> None:
    """The finding names the key."""
    (home / "mortise.toml").write_text("home_version = 1\nx = 1\n")
    assert of(home, "home").level == "fail"
    assert "`x`" in of(home, "home").found


@pytest.mark.parametrize(("mode", "level"), [(0o700, "ok"), (0o755, "warn"), (0o777, "fail")])
def test_an_exposed_home_is_told(home: Path, mode: int, level: str) -> None:
    """Readable by anybody warns, writable by anybody fails; the fix is the chmod line."""
    home.chmod(mode)
    finding = of(home, "home mode")
    assert finding.level == level
    assert level == "ok" or finding.fix.startswith("chmod o-")


def test_a_kernel_limit_below_ours_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The live value, the wanted one and the command that sets it."""
    monkeypatch.setattr(doctor_machine, "_read", lambda path: "128\n")
    finding = next(check() for check in CHECKS if check.__name__ == "_somaxconn")
    assert finding.level == "warn"
    assert "128" in finding.found
    assert finding.fix == "sysctl -w net.core.somaxconn=4096"


def test_a_live_value_that_a_reboot_takes_back_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Live and persisted kernel values are compared; comments and globs are not values."""
    conf = "# vm.overcommit_memory = 1\nnet.ipv4.conf.*.x = 1\nvm.swappiness = 199\n"
    (tmp_path / "90-x.conf").write_text(conf)
    monkeypatch.setattr(doctor_machine, "SYSCTL_FOLDERS", (str(tmp_path),))
    finding = next(check() for check in CHECKS if check.__name__ == "_persisted")
    assert finding.level == "warn"
    assert "persisted 199" in finding.found


@pytest.mark.parametrize(
    ("mode", "found"), [(os.R_OK, "not readable: mortise.toml"), (os.W_OK, "not writable")]
)
def test_a_home_of_somebody_else_is_told(
    mode: int, found: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What this uid cannot read or write, and the command that changes it."""

    def access(path: Path, wanted: int) -> bool:
        return not (wanted & mode and (path.is_file() or mode == os.W_OK))

    monkeypatch.setattr(os, "access", access)
    finding = of(home, "home access")
    assert (finding.level, found in finding.found) == ("fail", True)
    assert finding.fix.endswith(str(home))
