"""Makes each peer's virtual environment under build/peers/, from its pinned requirements.

    python -m benchmarks.peers.install [NAME ...] [--again]

pip, with whatever index it is configured for; torch first, so that a CPU build is taken where the
index offers one. What cannot be installed is written beside it with pip's reason, and the run
lists it.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

from benchmarks.peers.table import BY_NAME, PEERS, Peer

ROOT = Path(__file__).parents[2]
INSTALLED = ROOT / "build" / "peers"
REQUIREMENTS = Path(__file__).parent / "requirements"
install_s_max = 900.0
_REASON_CHARACTERS_MAX = 400
_WHERE = re.compile(r"https?://\S+|/\S+/\S+")
"""Addresses and paths of this machine, which a result file does not name."""


def install(peer: Peer, *, again: bool = False) -> str:
    """Install one peer; the reason when it could not be."""
    folder = INSTALLED / peer.name
    wanted = (REQUIREMENTS / f"{peer.name}.txt").read_text()
    stamp, refused = folder / "installed", folder / "refused"
    if stamp.is_file() and stamp.read_text() == wanted and not again:
        return ""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    for path in (stamp, refused):
        path.unlink(missing_ok=True)
    done = subprocess.run(
        [str(folder / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check",
         "-r", str(REQUIREMENTS / f"{peer.name}.txt")],
        capture_output=True, text=True, timeout=install_s_max, check=False,
    )  # fmt: skip
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        reason = _WHERE.sub("…", "; ".join(lines) or done.stderr)[:_REASON_CHARACTERS_MAX]
        refused.write_text(reason)
        return reason
    stamp.write_text(wanted)
    return ""


def missing_reasons(peers: list[Peer]) -> dict[str, str]:
    """Peer → why it is not installed; installed ones are absent from it."""
    reasons = {}
    for peer in peers:
        folder = INSTALLED / peer.name
        if peer.check_import and not (folder / "installed").is_file():
            refused = folder / "refused"
            reason = refused.read_text() if refused.is_file() else "make bench-peers installs it"
            reasons[peer.name] = f"not installed: {reason}"
    return reasons


def versions(peer: Peer) -> str:
    """The packages that the peer's requirements name first, with their versions."""
    path = REQUIREMENTS / f"{peer.name}.txt"
    if not path.is_file():
        return "this checkout"
    lines = [line.strip() for line in path.read_text().splitlines()]
    named = lines[: lines.index("")] if "" in lines else lines
    return ", ".join(line for line in named if line and not line.startswith("#"))


def main() -> None:
    """Install what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=[peer.name for peer in PEERS])
    parser.add_argument("--again", action="store_true")
    given = parser.parse_args()
    for name in given.names:
        if BY_NAME[name].check_import:
            print(f"{name}: installing", flush=True)
            print(f"{name}: {install(BY_NAME[name], again=given.again) or 'installed'}", flush=True)


if __name__ == "__main__":
    main()
