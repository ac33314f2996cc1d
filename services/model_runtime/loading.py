"""From a pack's digest to a model that is ready: verify, admit, map, build, warm.

Runs on the loader thread; touches nothing that serves.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from contracts.errors import MeshError
from contracts.types import UNSET
from services.model_runtime import memory
from services.model_runtime.backends.base import Backend
from services.model_runtime.backends.registry import find_backend
from services.model_runtime.budget import needed_bytes
from services.model_runtime.config import warm_rows, weights_share_max
from services.model_runtime.costs import Costs, Recalls
from services.model_runtime.generations import LoadTimes
from services.model_runtime.mapping import map_tensors, read_files
from services.model_runtime.model import Model
from shared.clock import Clock
from shared.pack_cache import VerifiedCache
from shared.packs import pack_path, read_view

mib = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Loader:
    """Loads packs of one home. `memory_mib_max` bounds the weights of all loaded versions;
    `backends` are the third-party ones that the home allows; `costs` what batches were measured to
    cost here before (None: each load measures)."""

    models_dir: Path
    cache: VerifiedCache
    memory_mib_max: int
    clock: Clock
    backends: Sequence[str] = ()
    costs: Costs | None = None

    def predict(self, digest: str) -> int:
        """Bytes that the pack's model will take of the budget. Raises MeshError PACK_INVALID."""
        return needed_bytes(self.cache.verify(digest)[0])

    def load(self, name: str, digest: str, loaded_bytes: int) -> tuple[Model, LoadTimes]:
        """The model `name` from its pack; `loaded_bytes` of weights are loaded already.

        Raises MeshError PACK_INVALID or MEMORY_EXHAUSTED, and whatever the first forward raises.
        """
        started_us = self.clock.monotonic_us()
        private_bytes = memory.used().private_bytes
        manifest, identities = self.cache.verify(digest)
        if manifest.contract.name != name:
            found = manifest.contract.name
            raise MeshError("PACK_INVALID", f"pack {digest} is of model {found}, not {name}")
        weights_bytes = sum(tensor.bytes for tensor in manifest.tensors)
        self._admit(weights_bytes, loaded_bytes)
        verified_us = self.clock.monotonic_us()
        kind = find_backend(manifest, self.backends)
        path = pack_path(self.models_dir, digest)
        tensors = map_tensors(path, manifest, identities)
        has_view = manifest.contract.view is not UNSET
        view_sql = read_view(self.models_dir, digest) if has_view else None
        try:
            backend = kind.load(manifest, tensors, read_files(path, manifest, identities))
        except ValueError as error:
            raise MeshError("PACK_INVALID", f"backend {manifest.backend}: {error}") from error
        model = Model(manifest, backend, view_sql, self.clock)
        mapped_us = self.clock.monotonic_us()
        self._warm(backend, digest)
        return model, LoadTimes(
            verify_us=verified_us - started_us + self.cache.hashed_us(digest),
            map_us=mapped_us - verified_us,
            warm_us=self.clock.monotonic_us() - mapped_us,
            bytes=weights_bytes,
            private_bytes=max(0, memory.used().private_bytes - private_bytes),
        )

    def _warm(self, backend: Backend, digest: str) -> None:
        """Warm it, unless what its batches cost here is recorded: its first row warms it then."""
        cost = None if self.costs is None else self.costs.recorded(digest)
        if cost is not None and isinstance(backend, Recalls):
            backend.recall(cost.batch_s, cost.row_s)
            return
        backend.warm()
        if self.costs is not None:
            self.costs.record(digest, backend.cost(1), backend.cost(warm_rows))

    def _admit(self, weights_bytes: int, loaded_bytes: int) -> None:
        """Refuse before anything is mapped."""
        limit = self.memory_mib_max * mib
        if loaded_bytes + weights_bytes > limit:
            raise MeshError(
                "MEMORY_EXHAUSTED",
                f"weights of {weights_bytes / mib:.1f} MiB beside {loaded_bytes / mib:.1f} MiB,"
                f" memory_mib_max is {self.memory_mib_max}",
            )
        available = memory.available_bytes()
        if weights_bytes > weights_share_max * available:
            raise MeshError(
                "MEMORY_EXHAUSTED",
                f"weights of {weights_bytes / mib:.1f} MiB, {weights_share_max:.0%} of the"
                f" {available / mib:.1f} MiB available are the limit",
            )
