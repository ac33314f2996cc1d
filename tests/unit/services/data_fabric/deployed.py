"""Packs that bring views, and the policies that deploy them."""

from typing import Any

from contracts.pack import (
    Architecture,
    ColumnEncoder,
    ModelContract,
    Provenance,
    TensorContract,
    ViewReference,
)
from contracts.policies import (
    DeployedVersion,
    DeploymentPolicy,
    DeploymentSpec,
    ModelPolicy,
    ModelSpec,
    PolicySet,
    PublishedVersion,
)
from services.data_fabric.sql import text_digest
from services.jobs.pack_writer import Draft, write_pack
from tests.unit.services.data_fabric.small_home import SmallHome


def deployed(home: SmallHome, *texts: str) -> PolicySet:
    """Policies that deploy a model for each of these view texts; their packs lie in the home."""
    policies: list[Any] = []
    for number, text in enumerate(texts):
        name = f"model_{number}"
        draft = Draft(
            contract=ModelContract(
                name=name,
                task="tensor",
                inputs=[TensorContract(name="x", datatype="FP32", shape=[-1, 2])],
                outputs=[TensorContract(name="y", datatype="FP32", shape=[-1, 2])],
                view=ViewReference(name="trip", version="1", digest=text_digest(text)),
            ),
            architecture=Architecture(name="none"),
            provenance=Provenance(code=text_digest("")),
            encoders=(ColumnEncoder(field="hour", kind="standard"),),
            view_sql=text,
        )
        digest = write_pack(draft, home.path / "models")
        published = PublishedVersion(version="1", digest=digest)
        deployment = DeploymentSpec(versions=[DeployedVersion(version="1")])
        policies += [
            ModelPolicy(name=name, spec=ModelSpec(versions=[published])),
            DeploymentPolicy(name=name, spec=deployment),
        ]
    return PolicySet(version=1, policies=policies)
