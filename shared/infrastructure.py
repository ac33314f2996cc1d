"""The infrastructure that an answer was made on, as facts and one digest.

Holds what may change a result or its speed: kernel, processor and its microcode, C library,
interpreter, packages, driver. No host name, path or address.
"""

import hashlib
import importlib.metadata
import os
import platform
import sys
from pathlib import Path

import msgspec

PACKAGES = (
    "apsw", "duckdb", "msgpack", "msgspec", "numpy", "pyarrow", "safetensors", "sqlglot", "torch",
    "uvloop",
)  # fmt: skip
_KERNEL_VALUES = (
    "kernel/mm/transparent_hugepage/enabled",
    "module/nvidia/version",
)
"""Below /sys."""
_CPU_KEYS = ("vendor_id", "model name", "microcode", "flags")


def facts() -> dict[str, str]:
    """What this machine and installation are, by name; what it lacks is "absent"."""
    libc, version = platform.libc_ver()
    found = {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "byteorder": sys.byteorder,
        "libc": f"{libc} {version}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "page_bytes": str(os.sysconf("SC_PAGE_SIZE")),
        "cores": str(os.cpu_count()),
    }
    found |= {f"cpu.{key}": value for key, value in _processor().items()}
    found |= {f"sys.{name}": _text(Path("/sys") / name) for name in _KERNEL_VALUES}
    found |= {f"package.{name}": _version(name) for name in PACKAGES}
    return found


def digest(found: dict[str, str]) -> str:
    """`sha256:` over the facts' canonical JSON."""
    encoded = msgspec.json.encode(found, order="sorted")
    return "sha256:" + hashlib.sha256(encoded).hexdigest()


def _processor() -> dict[str, str]:
    """The first processor of /proc/cpuinfo."""
    values: dict[str, str] = {}
    for line in _text(Path("/proc/cpuinfo")).splitlines():
        key, _, value = line.partition(":")
        if key.strip() in _CPU_KEYS:
            values.setdefault(key.strip(), value.strip())
    return values


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return "absent"


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "absent"
