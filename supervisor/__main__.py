"""`python -m supervisor start | stop | restart | status | doctor` in a checkout.

The `mortise` command offers the same with tables; this one needs nothing but the supervisor.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from shared.home import Home, HomeError
from supervisor import run


def main() -> int:
    """Parse, do, and turn errors into exit codes: 1 failed, 2 usage, 3 the mesh is down."""
    parser = argparse.ArgumentParser(prog="supervisor", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("start", "stop", "restart", "status", "doctor"):
        command = commands.add_parser(name)
        command.add_argument("--home", help="the home (default: MORTISE_HOME, else this folder)")
        if name == "start":
            command.add_argument("--detach", action="store_true", help="return once it is ready")
        if name == "restart":
            command.add_argument("service")
            command.add_argument("index", type=int, nargs="?", default=0)
        if name in ("status", "doctor"):
            command.add_argument("--json", action="store_true")
    options = parser.parse_args()
    home = Home.find(options.home).path
    try:
        return _obey(options, home)
    except run.NotRunning as error:
        print(error, file=sys.stderr)
        return run.EXIT_DOWN
    except HomeError as error:
        print(error, file=sys.stderr)
        return run.EXIT_FAILED


def _obey(options: argparse.Namespace, home: Path) -> int:
    if options.command == "start":
        return _start(home, options.detach)
    if options.command == "stop":
        return run.stop(home)
    if options.command == "restart":
        print(f"{options.service} {options.index} is now pid", end=" ")
        print(run.restart(home, options.service, options.index))
        return 0
    if options.command == "status":
        return _status(home, options.json)
    return _doctor(home if options.home or (home / "mortise.toml").exists() else None, options.json)


def _start(home: Path, detach: bool) -> int:
    is_foreground = not detach and run.READY_VARIABLE not in os.environ
    code = run.start(home, detach)
    if is_foreground and code == 0:
        print("stopped")
    return code


def _status(home: Path, as_json: bool) -> int:
    found = run.status(home)
    if as_json:
        print(json.dumps(found))
    elif found["running"]:
        print(f"mesh {found['state']}, pid {found['pid']}, up {found['uptime_s']:.0f} s")
        if found["reason"]:
            print(f"  because {found['reason']}")
        for child in found["children"]:
            print(line_of(child))
    if not found["running"]:
        raise run.NotRunning(home)
    return 0


def line_of(child: dict[str, Any]) -> str:
    """One child's row of the status, for people; a pid that there is not is a dash."""
    standby = child["standby"]
    words = [*child["reasons"], *child.get("alarms", []), child.get("cpu_weight", "")]
    notes = "; ".join(word for word in words if word)
    return (
        f"{child['service']} {child['index']}: {child['condition']}"
        f"{', ready' if child['ready'] else ''}, pid {child['pid'] or '-'},"
        f" restarts {child['restarts']}"
        + (f", standby {standby['pid'] or '-'} {standby['state']}" if standby else "")
        + (f" ({notes})" if notes else "")
    )


def _doctor(home: Path | None, as_json: bool) -> int:
    findings = run.doctor(home)
    if as_json:
        print(json.dumps([finding.as_map() for finding in findings]))
    else:
        for finding in findings:
            print(f"{finding.level:<5} {finding.check}: {finding.found}")
            if finding.fix:
                print(f"      fix: {finding.fix}")
    return run.EXIT_FAILED if any(finding.level == "fail" for finding in findings) else 0


if __name__ == "__main__":
    sys.exit(main())
