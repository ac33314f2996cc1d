"""Checks of one home: its file, its socket paths, who may read it, room on its disk."""

import os
import shutil
from collections.abc import Callable

from contracts.methods import SERVICES
from shared.home import CONFIG_NAME, Home, HomeError
from supervisor.findings import Finding

disk_free_mib_min = 512


def _home_file(home: Home) -> Finding:
    try:
        home.config()
    except HomeError as error:
        return Finding("home", "fail", str(error), "correct the file, or make a home: mortise init")
    return Finding("home", "ok", str(home.path))


def _home_sockets(home: Home) -> Finding:
    try:
        longest = max(len(os.fsencode(home.socket_path(name))) for name in SERVICES)
    except HomeError as error:
        return Finding("socket paths", "fail", str(error), 'run_dir = "/run/NAME" in mortise.toml')
    return Finding("socket paths", "ok", f"{longest} bytes")


def _home_mode(home: Home) -> Finding:
    try:
        mode = home.path.stat().st_mode & 0o777
    except OSError as error:
        return Finding("home mode", "fail", str(error.strerror), f"mortise init {home.path}")
    if mode & 0o002:
        return Finding(
            "home mode", "fail", f"{mode:o}: anybody may write", f"chmod o-w {home.path}"
        )
    if mode & 0o007:
        return Finding(
            "home mode", "warn", f"{mode:o}: anybody may read", f"chmod o-rwx {home.path}"
        )
    return Finding("home mode", "ok", f"{mode:o}")


def _home_access(home: Home) -> Finding:
    """Everything that a start opens: what is there is readable, and `.mortise` can be written."""
    places = [home.path, home.path / CONFIG_NAME, home.models_dir, home.data_dir]
    closed = [place.name for place in places if place.exists() and not os.access(place, os.R_OK)]
    written = home.state_dir if home.state_dir.exists() else home.path
    if not closed and os.access(written, os.W_OK | os.X_OK):
        return Finding("home access", "ok", "readable, and its state writable")
    found = f"not readable: {', '.join(closed)}" if closed else f"not writable: {written.name}"
    fix = f"run as its owner, or chown -R {os.getuid()} {home.path}"
    return Finding("home access", "fail", f"{found}, as uid {os.getuid()}", fix)


def _home_disk(home: Home) -> Finding:
    try:
        free_mib = shutil.disk_usage(home.path).free // 2**20
    except OSError as error:
        return Finding("disk", "fail", str(error.strerror), f"mortise init {home.path}")
    if free_mib >= disk_free_mib_min:
        return Finding("disk", "ok", f"{free_mib} MiB free")
    return Finding("disk", "fail", f"{free_mib} MiB free", f"free {disk_free_mib_min} MiB")


CHECKS: tuple[Callable[[Home], Finding], ...] = (
    _home_file, _home_access, _home_sockets, _home_mode, _home_disk,
)  # fmt: skip
