"""What a mesh that can answer lacks, and whether it still serves anything.

The edge counts as ready when a runtime has a model; that the model's feature view failed to load
is known to the data fabric alone, so both are asked.
"""

import asyncio
from collections.abc import Collection, Iterable
from pathlib import Path

from contracts.errors import MeshError
from contracts.features import Views
from contracts.inference import Models
from contracts.types import UNSET
from shared.packs import read_manifest
from supervisor.mesh import EDGE, Mesh

FABRIC = "data_fabric"
View = tuple[str, str]
"""Name and version."""


def shortfalls(mesh: Mesh) -> list[str]:
    """Why each child serves less than it should, by its own word; empty for a whole mesh."""
    found = []
    for slot in mesh.slots:
        health = mesh.health(slot)
        if health is None:
            found.append(f"{slot.spec.label}: no answer")
        elif health.degraded:
            found.append(f"{slot.spec.label}: {', '.join(health.reasons) or 'degraded'}")
    return found


def is_served(needed: Iterable[View | None], served: Collection[View]) -> bool:
    """Whether some model can be asked, or there is none; None: a model that needs no view."""
    needs = list(needed)
    return not needs or any(view is None or view in served for view in needs)


async def serves_something(mesh: Mesh, models_dir: Path) -> bool:
    """False when every model that is loaded needs a view that is not. Where one of the two does
    not answer, the edge's own `ready` has to do: True."""
    edge, fabric = mesh.slot(EDGE), mesh.slot(FABRIC)
    if edge is None or fabric is None:
        return True
    models = await mesh.probes[edge.spec.label].ask("models")
    views = await mesh.probes[fabric.spec.label].ask("views")
    if not isinstance(models, Models) or not isinstance(views, Views):
        return True
    digests = [row.digest for row in models.models if row.state == "ready"]
    needed = await asyncio.to_thread(_views_of, models_dir, digests)
    return is_served(needed, {(row.name, row.version) for row in views.views})


def _views_of(models_dir: Path, digests: list[str]) -> list[View | None]:
    """The view of each pack; one that can no longer be read is loaded, and may not need any."""
    found: list[View | None] = []
    for digest in digests:
        try:
            view = read_manifest(models_dir, digest).contract.view
        except MeshError:
            view = UNSET
        found.append(None if view is UNSET else (view.name, view.version))
    return found
