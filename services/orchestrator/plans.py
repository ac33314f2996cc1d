"""Plans of published versions, read from their packs in `models/` and kept."""

from pathlib import Path

from contracts.types import UNSET
from services.orchestrator.plan import ModelPlan, compile_plan
from shared.packs import read_manifest, read_view

plans_max = 1_024


class Plans:
    """The same version always gives the same plan object, while it is kept."""

    def __init__(self, models_dir: Path) -> None:
        self._models_dir = models_dir
        self._known: dict[tuple[str, str, str], ModelPlan] = {}

    def of(self, name: str, version: str, digest: str) -> ModelPlan:
        """The plan of a version. Raises PACK_INVALID when its pack is absent or wrong."""
        key = (name, version, digest)
        plan = self._known.get(key)
        if plan is None:
            manifest = read_manifest(self._models_dir, digest)
            has_view = manifest.contract.view is not UNSET
            view_sql = read_view(self._models_dir, digest) if has_view else None
            plan = compile_plan(name, version, digest, manifest, view_sql)
            if len(self._known) >= plans_max:
                self._known.clear()
            self._known[key] = plan
        return plan
