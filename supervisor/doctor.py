"""`doctor`: every check of the machine and of a home, each with its fix. Changes nothing."""

from pathlib import Path

from shared.home import Home
from supervisor import doctor_home, doctor_machine
from supervisor.findings import Finding

__all__ = ["Finding", "doctor"]


def doctor(home: Path | None = None) -> list[Finding]:
    """The findings for this machine, and for the home where one is given."""
    findings = [check() for check in doctor_machine.CHECKS]
    if home is None:
        findings.append(Finding("home", "ok", "no home here; --home DIR checks one"))
    else:
        findings += [check(Home(home)) for check in doctor_home.CHECKS]
    return findings
