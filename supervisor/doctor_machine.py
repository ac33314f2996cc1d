"""Checks of the machine: interpreter, kernel limits live and persisted, clock, exposure."""

import ctypes
import os
import platform
import re
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

from contracts.limits import connections_max_default, listen_backlog
from shared.compiled import Build
from shared.home import HomeError
from supervisor.findings import Finding
from supervisor.jemalloc import find_jemalloc
from supervisor.tree import check_tree, tree

python_min = (3, 11)
kernel_min = (5, 4)
"""The subreaper, memfd and PR_SET_PDEATHSIG are older; 5.4 is the oldest kept kernel."""
descriptors_min = connections_max_default + 1_000
swappiness_max = 60
shm_mib_min = 64
clock_error_us_max = 10_000
_TIME_ERROR = 5
"""adjtimex(2): the clock is not synchronised."""
SYSCTL_FOLDERS = ("/usr/lib/sysctl.d", "/run/sysctl.d", "/etc/sysctl.d")


def _python() -> Finding:
    found = platform.python_version()
    wanted = ".".join(str(part) for part in python_min)
    if tuple(int(part) for part in found.split(".")[:2]) >= python_min:
        return Finding("python", "ok", found)
    return Finding("python", "fail", found, f"install Python ≥ {wanted}")


def _packages() -> Finding:
    try:
        check_tree()
    except HomeError as error:
        return Finding("packages", "fail", str(error), "use the mortise command of one environment")
    return Finding("packages", "ok", "all from one tree")


def _compiled() -> Finding:
    build = Build.read(tree())
    fault = "there is no build" if build is None else build.fault(tree())
    if fault is None:
        return Finding("compiled", "ok", "the hot path runs compiled")
    fix = "mortise compile, then stop and start the mesh"
    return Finding("compiled", "warn", f"the hot path runs from source: {fault}", fix)


def _kernel() -> Finding:
    found = platform.release()
    numbers = tuple(int(part) for part in re.findall(r"\d+", found)[:2])
    if platform.system() == "Linux" and numbers >= kernel_min:
        return Finding("kernel", "ok", f"Linux {found}")
    wanted = ".".join(str(part) for part in kernel_min)
    return Finding("kernel", "fail", f"{platform.system()} {found}", f"use Linux ≥ {wanted}")


def _somaxconn() -> Finding:
    return _kernel_value(
        "net.core.somaxconn",
        listen_backlog,
        "clients beyond the backlog must retry their connects",
    )


def _descriptors() -> Finding:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard >= descriptors_min:
        return Finding("nofile", "ok", f"hard limit {hard}")
    return Finding(
        "nofile",
        "warn",
        f"hard limit {hard}, {descriptors_min} wanted for {connections_max_default} connections",
        f"ulimit -Hn {descriptors_min}, or LimitNOFILE={descriptors_min} in the unit",
    )


def _swappiness() -> Finding:
    found = _number("/proc/sys/vm/swappiness")
    if found is None or found <= swappiness_max:
        return Finding("vm.swappiness", "ok", _shown(found))
    return Finding(
        "vm.swappiness", "warn", f"{found}, ≤ {swappiness_max} wanted",
        f"sysctl -w vm.swappiness={swappiness_max // 6}",
    )  # fmt: skip


def _huge_pages() -> Finding:
    text = _read("/sys/kernel/mm/transparent_hugepage/enabled")
    chosen = re.search(r"\[(\w+)\]", text)
    if chosen is None or chosen[1] != "always":
        return Finding("transparent_hugepage", "ok", chosen[1] if chosen else "absent")
    return Finding(
        "transparent_hugepage",
        "warn",
        "always: compaction stalls a request now and then",
        "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
    )


def _shared_memory() -> Finding:
    try:
        free_mib = shutil.disk_usage("/dev/shm").free // 2**20
    except OSError:
        return Finding("/dev/shm", "warn", "absent", "mount -t tmpfs tmpfs /dev/shm")
    if free_mib >= shm_mib_min:
        return Finding("/dev/shm", "ok", f"{free_mib} MiB free")
    return Finding(
        "/dev/shm", "warn", f"{free_mib} MiB free, {shm_mib_min} wanted",
        "remove what fills it, or mount it larger (mount -o remount,size=1G /dev/shm)",
    )  # fmt: skip


def _processor() -> Finding:
    if platform.machine() not in ("x86_64", "AMD64"):
        return Finding("processor", "ok", platform.machine())
    line = re.search(r"^flags\s*:(.*)$", _read("/proc/cpuinfo"), re.MULTILINE)
    flags = set(line[1].split()) if line else set()
    if "avx2" in flags or not flags:
        return Finding("processor", "ok", "x86_64 with avx2" if flags else "x86_64")
    return Finding(
        "processor", "warn", "x86_64 without avx2: models run several times slower",
        "use a machine, or a virtual machine type, that shows AVX2",
    )  # fmt: skip


class _Timex(ctypes.Structure):
    """The head of struct timex. Source: adjtimex(2)."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("rest", ctypes.c_byte * 256),
    )


def _clock() -> Finding:
    timex = _Timex()
    state = ctypes.CDLL(None).adjtimex(ctypes.byref(timex))
    if state < 0:
        return Finding("clock", "warn", "the kernel does not say", "")
    if state != _TIME_ERROR and timex.esterror <= clock_error_us_max:
        return Finding("clock", "ok", f"synchronised, error about {timex.esterror} µs")
    return Finding(
        "clock", "warn", "not synchronised: event times of two machines do not compare",
        "run chrony or systemd-timesyncd",
    )  # fmt: skip


def _jemalloc() -> Finding:
    found = find_jemalloc(os.environ)
    if found:
        return Finding("jemalloc", "ok", found)
    return Finding(
        "jemalloc", "warn", "absent: runtimes keep more memory after bursts",
        "install it (Debian: apt install libjemalloc2)",
    )  # fmt: skip


def _persisted() -> Finding:
    """Live kernel values that a reboot would take back, or files that were never loaded."""
    differing = []
    for name, value in _persisted_values().items():
        live = _read(f"/proc/sys/{name.replace('.', '/')}").split()
        if live and live != value.split():
            differing.append(f"{name} is {' '.join(live)}, persisted {value}")
    if not differing:
        return Finding("sysctl", "ok", "live values equal the persisted ones")
    return Finding(
        "sysctl", "warn", "; ".join(differing[:5]),
        "sysctl --system, or correct the file in /etc/sysctl.d",
    )  # fmt: skip


def _root_login() -> Finding:
    text = _read("/etc/ssh/sshd_config")
    allowed = re.search(r"(?im)^\s*PermitRootLogin\s+yes\b", text)
    if not allowed:
        return Finding("root log-in", "ok", "not allowed by password" if text else "no sshd")
    return Finding(
        "root log-in", "warn", "sshd lets root in",
        "PermitRootLogin prohibit-password in /etc/ssh/sshd_config",
    )  # fmt: skip


def _kernel_value(name: str, wanted: int, why: str) -> Finding:
    found = _number(f"/proc/sys/{name.replace('.', '/')}")
    if found is None or found >= wanted:
        return Finding(name, "ok", _shown(found))
    return Finding(name, "warn", f"{found}, ≥ {wanted} wanted: {why}", f"sysctl -w {name}={wanted}")


def _persisted_values() -> dict[str, str]:
    values: dict[str, str] = {}
    files = {file.name: file for folder in SYSCTL_FOLDERS for file in Path(folder).glob("*.conf")}
    for name in sorted(files):
        for line in _read(str(files[name])).splitlines():
            key, equals, value = line.strip().partition("=")
            if equals and not key.startswith(("#", ";", "-")) and "*" not in key:
                values[key.strip().replace("/", ".")] = value.strip()
    return values


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _number(path: str) -> int | None:
    text = _read(path).strip()
    return int(text) if text.lstrip("-").isdecimal() else None


def _shown(number: int | None) -> str:
    return "absent" if number is None else str(number)


CHECKS: tuple[Callable[[], Finding], ...] = (
    _python, _packages, _compiled, _kernel, _somaxconn, _descriptors, _swappiness, _huge_pages,
    _shared_memory, _processor, _clock, _jemalloc, _persisted, _root_login,
)  # fmt: skip
