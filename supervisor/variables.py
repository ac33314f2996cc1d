"""The environment a child is born with: what must be there before exec, and nothing it inherits
by accident. Pure: the caller says what the machine has.
"""

from collections.abc import Mapping

PASSED = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "XDG_RUNTIME_DIR", "SSL_CERT_FILE",
     "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "MORTISE_INTERPRETED"}
)  # fmt: skip
PASSED_PREFIXES = ("AWS_", "CUDA_", "NVIDIA_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
"""Credentials of object stores and what selects a device; every other variable stays out."""
_allocator_keep_bytes = 64 * 1024 * 1024
"""Freed blocks up to this size stay with glibc: without it each 16 MiB frame costs page faults
(4–5 ms instead of up to 26)."""
_arenas_max = 2
JEMALLOC_OPTIONS = "dirty_decay_ms:1000,muzzy_decay_ms:1000"


def variables(
    inherited: Mapping[str, str],
    *,
    tree: str,
    threads: int,
    jemalloc: str | None,
    is_template: bool,
) -> dict[str, str]:
    """Every variable of one child.

    `tree` is the folder our packages are imported from; `threads` what numeric libraries may use;
    `jemalloc` the library's path where there is one. Its background thread stays off in the
    template, which must have a single thread when it forks; each worker turns it on.
    """
    passed = {
        name: value
        for name, value in inherited.items()
        if name in PASSED or name.upper().startswith(PASSED_PREFIXES)
    }
    own = {
        "PYTHONPATH": tree,
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        # numpy's OpenBLAS starts threads at import; the fork needs a single-threaded template.
        "OPENBLAS_NUM_THREADS": "1",
        "MALLOC_ARENA_MAX": str(_arenas_max),
        "MALLOC_MMAP_THRESHOLD_": str(_allocator_keep_bytes),
        "MALLOC_TRIM_THRESHOLD_": str(2 * _allocator_keep_bytes),
    }
    if jemalloc is not None:
        background = "false" if is_template else "true"
        own["LD_PRELOAD"] = jemalloc
        own["MALLOC_CONF"] = f"background_thread:{background},{JEMALLOC_OPTIONS}"
    return {**passed, **own}
