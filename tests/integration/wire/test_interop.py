"""MessagePack-RPC clients that nobody here wrote call `infer` and read errors.

The npm ones are skipped where npm or its registry is absent, except where MORTISE_REQUIRE_NPM=1
or CI=true says that they must be there.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import ERRORS
from tests.integration.wire.toy import Toy

CLIENTS = Path(__file__).parent / "clients"
NPM_PACKAGES = ("neovim@5.5.0", "msgpack-rpc-lite@1.0.2")
INSTALL_S_MAX = 90
RUN_S_MAX = 60


def is_npm_required() -> bool:
    """Whether the absence of npm is a failure."""
    return os.environ.get("MORTISE_REQUIRE_NPM") == "1" or os.environ.get("CI") == "true"


@pytest.fixture(scope="module")
def node_modules() -> Iterator[Path]:
    """A folder with the npm packages in it."""
    reason = None if shutil.which("npm") and shutil.which("node") else "npm is not installed"
    folder = Path(tempfile.mkdtemp(prefix="mo", dir="/tmp"))
    if reason is None:
        try:
            subprocess.run(
                ["npm", "install", "--no-audit", "--no-fund", "--prefix", folder, *NPM_PACKAGES],
                check=True,
                capture_output=True,
                timeout=INSTALL_S_MAX,
            )
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            reason = f"npm cannot install {' '.join(NPM_PACKAGES)}: {error}"
    if reason is not None:
        shutil.rmtree(folder)
        if is_npm_required():
            pytest.fail(reason)
        pytest.skip(reason)
    yield folder / "node_modules"
    shutil.rmtree(folder)


def check(command: list[str], path: str, environment: dict[str, str] | None = None) -> None:
    """The client was answered, read a declared error with its fields, and pipelined."""
    done = subprocess.run(
        [*command, path],
        check=False,
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
        env={**os.environ, **(environment or {})},
    )
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout)
    assert seen["model_name"] == "tiny"
    assert seen["is_binary"]
    for name, words in (("unknown", "unknown"), ("invalid", "unknown field `mode`")):
        error = seen[name]
        assert error["code"] == ERRORS[error["name"]].code
        assert words in error["message"]
        assert len(error["trace_id"]) == 32
        assert error["retryable"] is False
    assert seen["unknown"]["name"] == "MODEL_UNKNOWN"
    assert seen["invalid"]["name"] == "INVALID_REQUEST"
    assert seen["pipelined"] == 20


def test_aio_msgpack_rpc(toy: Toy) -> None:
    """From PyPI."""
    check([sys.executable, str(CLIENTS / "aio_msgpack_rpc_client.py")], toy.path)


@pytest.mark.parametrize("script", ["neovim.js", "msgpack_rpc_lite.js"])
def test_npm_clients(toy: Toy, node_modules: Path, script: str) -> None:
    """neovim's transport and msgpack-rpc-lite."""
    check(["node", str(CLIENTS / script)], toy.path, {"NODE_PATH": str(node_modules)})
