"""`mortise bench soak` on a mesh of its own, and its result file.

    python -m benchmarks.soak [--minutes 20] [--rate 500] [--note TEXT] [--no-save]

Writes `benchmarks/results/soak.json`; exit code 1 when a process grows or a request failed.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.serving import EXAMPLE, ROOT, supervisor
from services.jobs.machine import describe_machine

RESULTS = ROOT / "benchmarks" / "results" / "soak.json"
ALLOWANCE_S = 120.0


def main() -> int:
    """Start, soak, stop, save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--rate", type=float, default=500.0)
    parser.add_argument("--note", default="")
    parser.add_argument("--no-save", action="store_true")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="mob", dir="/tmp"))
    home = folder / "home"
    shutil.copytree(EXAMPLE, home)
    words = ["bench", "soak", "--model", "tiny", "--minutes", f"{given.minutes:g}"]
    words += ["--rate", f"{given.rate:g}", "--home", str(home), "--json"]
    try:
        supervisor(home, "start", "--detach")
        try:
            done = subprocess.run(
                [sys.executable, "-m", "mortise", *words],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                text=True,
                timeout=given.minutes * 60 + ALLOWANCE_S,
                check=False,
            )
        finally:
            supervisor(home, "stop")
    finally:
        shutil.rmtree(folder)
    found = json.loads(done.stdout)
    for row in found["slopes"]:
        interval = f"{row['low_per_min']:g} … {row['high_per_min']:g}"
        words = [f"{row['process']:<30}", f"{row['what']:<12}", f"{row['slope_per_min']:>10g}/min"]
        print(*words, f"[{interval}]", "" if row["is_flat"] else "GROWS")
    print(f"{found['answered']} answered, {found['failed']} failed; flat: {found['is_flat']}")
    if not given.no_save:
        command = f"python -m benchmarks.soak --minutes {given.minutes:g} --rate {given.rate:g}"
        result = {
            "what": "slopes of every process under a steady load",
            "command": command,
            **found,
            "machine": describe_machine(),
            "note": given.note,
        }
        RESULTS.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
