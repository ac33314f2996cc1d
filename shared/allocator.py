"""jemalloc, where the supervisor preloaded it: its background thread in a forked worker."""

import ctypes


def is_jemalloc() -> bool:
    """Whether this process allocates through jemalloc."""
    return hasattr(ctypes.CDLL(None), "mallctl")


def start_background_thread() -> bool:
    """Let jemalloc return freed memory by itself; False without jemalloc or when it refuses.

    It is off in the template, whose only thread must be the one that forks.
    """
    if not is_jemalloc():
        return False
    is_on = ctypes.c_bool(True)
    size = ctypes.c_size_t(ctypes.sizeof(is_on))
    library = ctypes.CDLL(None)
    code: int = library.mallctl(b"background_thread", None, None, ctypes.byref(is_on), size)
    return code == 0
