"""Which backend computes a pack: a built-in one, or an installed package's entry point that the
home allows (`[runtime] backends`). A pack alone never makes the runtime import anything."""

from collections.abc import Sequence
from importlib import metadata

from contracts.errors import MeshError
from contracts.pack import Manifest
from contracts.program import PROGRAM_BACKEND
from services.model_runtime.backends.base import Backend
from services.model_runtime.backends.program import ExportedProgram
from services.model_runtime.backends.torch_module import TorchModule

GROUP = "mortise.backends"
"""The entry-point group of third-party backends."""
BUILT_IN: dict[str, type[Backend]] = {"torch": TorchModule, PROGRAM_BACKEND: ExportedProgram}
_MEMBERS = ("load", "warm", "forward", "lane", "cost", "waits", "close")


def find_backend(manifest: Manifest, allowed: Sequence[str]) -> type[Backend]:
    """The backend that the manifest names; `allowed` are the home's `[runtime] backends`.

    Raises MeshError PACK_INVALID naming the backend and what to do.
    """
    name = manifest.backend
    built_in = BUILT_IN.get(name)
    if built_in is not None:
        return built_in
    if name not in allowed:
        listed = ", ".join([*BUILT_IN, *allowed])
        raise MeshError(
            "PACK_INVALID",
            f"backend {name!r} is not one of this home's: {listed}; if an installed package has it,"
            f" add it to [runtime] backends of mortise.toml",
        )
    return _load(name)


def _load(name: str) -> type[Backend]:
    points = [*metadata.entry_points(group=GROUP, name=name)]
    if len(points) != 1:
        owners = ", ".join(sorted(str(point.dist and point.dist.name) for point in points))
        found = f"{len(points)} installed packages have it ({owners})" if points else "none has it"
        raise MeshError(
            "PACK_INVALID",
            f"backend {name!r}: exactly one installed package with an entry point {name!r} in the"
            f" group {GROUP} is needed, {found}; install one where the mesh is installed",
        )
    (point,) = points
    try:
        backend: type[Backend] = point.load()
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error)[:200]}"
        raise MeshError(
            "PACK_INVALID", f"backend {name!r} ({point.value}) cannot be imported: {reason}"
        ) from error
    absent = [member for member in _MEMBERS if not hasattr(backend, member)]
    if absent:
        raise MeshError(
            "PACK_INVALID",
            f"backend {name!r} ({point.value}) lacks {', '.join(absent)} of a backend's contract",
        )
    return backend
