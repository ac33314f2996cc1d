"""The wheel where it is installed: the SDK on msgpack alone, and the mesh beside packages of the
same names."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest

from tests.unit.mortise.fake_server import FakeServer

ROOT = Path(__file__).parents[3]
LIBRARIES = Path(sysconfig.get_path("purelib"))
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]


def run(command: list[str | Path], **environment: str) -> subprocess.CompletedProcess[str]:
    """A command outside the checkout, in an environment of its own."""
    return subprocess.run(
        command,
        cwd="/",
        env={"PATH": os.environ["PATH"], "HOME": "/nowhere", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.fixture(scope="module")
def wheel() -> Iterator[Path]:
    """The wheel of this checkout, built without a network."""
    folder = Path(tempfile.mkdtemp(prefix="mo", dir="/tmp"))
    build = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, ROOT]
    subprocess.run(build, check=True)
    yield next(folder.glob("*.whl"))
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def bare(wheel: Path) -> Iterator[Path]:
    """A virtual environment that holds msgpack and the wheel, and nothing else."""
    folder = Path(tempfile.mkdtemp(prefix="mo", dir="/tmp"))
    venv.create(folder, symlinks=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = folder / "lib" / version / "site-packages"
    shutil.copytree(Path(msgpack.__file__).parent, packages / "msgpack")
    python = folder / "bin/python"
    subprocess.run([*PIP, "--python", python, "install", "--no-deps", wheel], check=True)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def beside(bare: Path) -> Path:
    """The same with the serving packages, and other people's `supervisor` and `shared`."""
    (packages,) = bare.glob("lib/*/site-packages")
    for name in ("supervisor", "shared"):
        (packages / name).mkdir()
        (packages / name / "__init__.py").write_text("raise ImportError('not ours')")
    (packages / "libraries.pth").write_text(f"{LIBRARIES}\n")
    return bare


def test_the_sdk_needs_only_msgpack(bare: Path) -> None:
    """Both clients call a service where there is neither msgspec nor numpy."""
    program = (
        "import asyncio, importlib.util, sys; from mortise import AsyncClient, Client\n"
        "assert not any(map(importlib.util.find_spec, ('msgspec', 'numpy', 'torch')))\n"
        "async def ask():\n"
        "    async with AsyncClient(sys.argv[1]) as client:\n"
        "        return (await client.infer('tiny', inputs={'x': [[1.5]]})).body.id\n"
        "with Client(sys.argv[1]) as client:\n"
        "    assert client.infer('delay', rows=[{'a': 1}]).body.rows[0].a == 1\n"
        "assert len(asyncio.run(ask())) == 32\n"
        "import mortise; print(mortise.Overloaded.code, mortise.__file__)\n"
    )
    with FakeServer() as server:
        done = run([bare / "bin/python", "-c", program, server.path])
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == "461"
    assert done.stdout.split()[1].startswith(str(bare))


def test_without_the_serving_packages_the_command_says_what_installs_them(bare: Path) -> None:
    """`mortise start` on the bare SDK: exit 1 and one line to type."""
    done = run([bare / "bin/mortise", "start"])
    assert done.returncode == 1
    assert "pip install 'mortise[serve]'" in done.stderr


def test_the_generic_names_are_not_at_the_top_of_site_packages(bare: Path) -> None:
    """Only `mortise` is; ours are in its private folder, with the examples and the schemas."""
    (packages,) = bare.glob("lib/*/site-packages")
    ours = {path.name for path in packages.iterdir() if path.name != "msgpack"}
    assert {name.partition("-")[0] for name in ours} <= {
        "mortise", "libraries.pth", "supervisor", "shared",
    }  # fmt: skip
    private = packages / "mortise/app"
    for name in ("contracts/released", "services", "shared", "supervisor", "examples/flights/data"):
        assert (private / name).is_dir()


def test_ours_win_beside_packages_of_the_same_names(beside: Path, tmp_path: Path) -> None:
    """Both commands use our supervisor and contracts, not those in site-packages."""
    checked = run([beside / "bin/mortise", "contracts", "check", "--json"])
    assert json.loads(checked.stdout)["allowed"] is True, checked.stderr
    home = tmp_path / "home"
    made = run([beside / "bin/mortise", "init", home, "--example", "bench"])
    assert made.returncode == 0, made.stderr
    state = run([beside / "bin/supervisor", "status", "--home", home])
    assert state.returncode == 3, state.stderr
    doctor = run([beside / "bin/supervisor", "doctor", "--home", home, "--json"])
    assert json.loads(doctor.stdout), doctor.stderr


def test_the_plugin_is_light(beside: Path) -> None:
    """Pytest loads it everywhere: it brings neither our services nor any library."""
    program = (
        "import sys, pytest; before = set(sys.modules); import mortise.testing;"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before};"
        "print(*sorted(new - set(sys.stdlib_module_names)))"
    )
    done = run([beside / "bin/python", "-c", program])
    assert done.stdout.split() == ["mortise"], done.stderr
