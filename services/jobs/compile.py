"""Compiles the modules of the hot path with mypyc: the same typed sources, as machine code.

    python -m services.jobs.compile [--if-needed]

Writes `build/compiled/` below the folder that holds the packages; `shared.compiled` finds it. Needs
mypy, setuptools, a C compiler and Python's headers, and about a minute. Progress is one JSON object
a line; a failed build leaves the old one, which is used only while its sources are unchanged.
"""

import argparse
import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from contracts.errors import MeshError
from services.jobs.progress import report, run
from shared.compiled import PLACE, Build, digest_of, tag

MODULES = (
    "shared.access", "shared.clock", "shared.deadline", "shared.metrics", "shared.polling",
    "shared.wire.framing", "shared.wire.heads", "shared.wire.walk",
    "shared.rpc.answers", "shared.rpc.call", "shared.rpc.connection", "shared.rpc.counters",
    "shared.rpc.dispatch",
    "shared.rpc.link", "shared.rpc.refusals", "shared.rpc.serving", "shared.rpc.session",
    "services.orchestrator.access_log", "services.orchestrator.admission",
    "services.orchestrator.alarm", "services.orchestrator.allowances",
    "services.orchestrator.answer",
    "services.orchestrator.batching", "services.orchestrator.bounds",
    "services.orchestrator.breaker", "services.orchestrator.breakers",
    "services.orchestrator.combinations", "services.orchestrator.config",
    "services.orchestrator.cost",
    "services.orchestrator.deadlines", "services.orchestrator.dispatch",
    "services.orchestrator.execution", "services.orchestrator.fairness",
    "services.orchestrator.forecast", "services.orchestrator.lead",
    "services.orchestrator.memory_gate",
    "services.orchestrator.numbers", "services.orchestrator.observe",
    "services.orchestrator.output_contract", "services.orchestrator.pipeline",
    "services.orchestrator.plain", "services.orchestrator.plan", "services.orchestrator.queue",
    "services.orchestrator.replica",
    "services.orchestrator.replicas", "services.orchestrator.replies",
    "services.orchestrator.request", "services.orchestrator.reserve",
    "services.orchestrator.retrying", "services.orchestrator.routing", "services.orchestrator.rows",
    "services.orchestrator.rules",
    "services.orchestrator.comparison", "services.orchestrator.shadow",
    "services.orchestrator.split",
    "services.orchestrator.segment", "services.orchestrator.shedding",
    "services.orchestrator.spool", "services.orchestrator.stamps",
    "services.orchestrator.tensors",
    "services.orchestrator.token_cost", "services.orchestrator.tokens",
)  # fmt: skip
"""What runs for each request. Modules of msgspec structs are C already and stay as they are.

In these modules a name that is imported from others, or not Final, costs a look-up in a dictionary
each time: what is used for each request has a Final name (`_UNSET: Final = UNSET`)."""
TREE = Path(__file__).resolve().parents[2]
build_s_max = 900.0
_STEPS = """
import sys
from mypyc.build import mypycify
from setuptools import setup
place, *paths = sys.argv[1:]
setup(
    name="mortise-compiled", packages=[], script_args=["build_ext", "--build-lib", place + "/lib",
    "--build-temp", place + "/objects"],
    ext_modules=mypycify(paths, opt_level="2", debug_level="0", multi_file=True,
    target_dir=place + "/c", group_name="mortise"),
)
"""


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--if-needed", action="store_true", help="keep a build that is current")
    options = parser.parse_args()
    present = Build.read(TREE)
    if options.if_needed and present is not None and present.fault(TREE) is None:
        report("current", modules=len(MODULES))
        return
    sources = [f"{name.replace('.', '/')}.py" for name in MODULES]
    report("compiling", modules=len(sources))
    with tempfile.TemporaryDirectory(prefix="mortise-") as place:
        digests = {path: digest_of(TREE / path) for path in sources}
        _compile(Path(place), sources)
        _put_in_place(Path(place) / "lib", digests)
    report("compiled", modules=len(sources), folder=str(PLACE))


def _compile(place: Path, sources: list[str]) -> None:
    """Run mypyc and the C compiler in a process of their own: setuptools changes its process."""
    for package in ("mypyc", "setuptools"):
        if importlib.util.find_spec(package) is None:
            text = f"{package} is not installed: pip install mypy setuptools, then compile again"
            raise MeshError("UNAVAILABLE", text)
    command = [sys.executable, "-c", _STEPS, str(place), *sources]
    variables = {**os.environ, "PYTHONPATH": str(TREE)}
    done = subprocess.run(
        command, cwd=TREE, env=variables, capture_output=True, text=True, check=False,
        timeout=build_s_max,
    )  # fmt: skip
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines()[-12:]
        raise MeshError("INTERNAL", "\n".join(["the modules were not compiled:", *said]))


def _put_in_place(made: Path, digests: dict[str, str]) -> None:
    """Replace the build whole; whoever runs the old one keeps its files mapped."""
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    files = {
        ".".join(file.relative_to(made).parts).removesuffix(suffix): str(file.relative_to(made))
        for file in made.rglob(f"*{suffix}")
    }
    missing = set(MODULES) - files.keys()
    assert not missing, f"no file for {missing}"
    place = TREE / PLACE
    place.parent.mkdir(exist_ok=True)
    fresh = place.with_name(f"{place.name}.{os.getpid()}")
    with contextlib.ExitStack() as cleanup:
        cleanup.callback(shutil.rmtree, fresh, ignore_errors=True)
        shutil.copytree(made, fresh)
        Build(fresh, tag(), digests, files).write()
        if place.exists():
            old = place.with_name(f"{place.name}.old.{os.getpid()}")
            place.rename(old)
            cleanup.callback(shutil.rmtree, old, ignore_errors=True)
        fresh.rename(place)


if __name__ == "__main__":
    run(main)
