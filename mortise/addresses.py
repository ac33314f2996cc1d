"""Where a home's sockets are, found without the serving packages; and who is not there."""

import os
import tomllib
from pathlib import Path

from mortise.generated import SOCKET_PATH_BYTES_MAX
from mortise.retry import MeshDown

SETTINGS = "mortise.toml"
RUN_DIR = ".mortise/run"
LEFT_RUN_DIR = ".mortise/run_dir"
"""Where the mesh that ran last put its sockets."""


def home_path(home: str | os.PathLike[str] | None = None) -> Path:
    """The home, absolute: as given, else `MORTISE_HOME`, else the current directory."""
    return Path(os.path.abspath(home or os.environ.get("MORTISE_HOME") or "."))


def socket_path(home: Path, service: str) -> str:
    """The path of a service's socket (of the first runtime), `run_dir` of `mortise.toml` obeyed.

    A running mesh is also found when the file is not TOML any more: it left where it is. Raises
    ValueError when the path is too long for a socket, or the file is not TOML; OSError when it
    cannot be read.
    """
    name = f"{service}.0" if service == "model_runtime" else service
    path = str(_run_dir(home) / f"{name}.sock")
    length = len(os.fsencode(path))
    if length > SOCKET_PATH_BYTES_MAX:
        raise ValueError(
            f"{path} is {length} bytes long, socket_path_bytes_max is {SOCKET_PATH_BYTES_MAX}:"
            f' move the home to a shorter path, or put run_dir = "/run/NAME" into {SETTINGS}'
        )
    return path


def mesh_down(path: str, why: str) -> MeshDown:
    """The error for a socket that nobody listens at, with the line that starts its mesh, or that
    makes the home where there is none."""
    remedy = "mortise start --detach"
    folder = Path(path).parent
    if folder.parts[-2:] == Path(RUN_DIR).parts:  # a moved run directory does not name its home
        home = folder.parents[1]
        is_home = os.path.isfile(home / SETTINGS)
        remedy = f"{remedy} --home {home}" if is_home else _make_home(home)
    return MeshDown(f"nothing listens at {path} ({why})", remedy)


def _make_home(folder: Path) -> str:
    """The line that makes a home there; a folder that holds other things is none to be made one."""
    try:
        is_used = any(folder.iterdir())
    except OSError:
        is_used = False
    if is_used:
        folder = folder / "demo"
        return f"name the home with --home DIR, or: mortise init {folder} --example flights"
    return f"mortise init {folder} --example flights"


def _run_dir(home: Path) -> Path:
    file = home / SETTINGS
    if not os.path.exists(file):
        return home / RUN_DIR
    try:
        settings = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        left = home / LEFT_RUN_DIR
        if not os.path.isfile(left):
            raise
        return Path(os.path.normpath(home / left.read_text(encoding="utf-8")))
    return home / str(settings.get("run_dir", RUN_DIR))
