"""The infrastructure contract: what one process of each service may use of the machine, unless an
`sla` policy `*` says otherwise.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from contracts.policies import InfrastructureSpec, MemoryReaction, ServiceName
from contracts.types import UNSET

Resource = Literal["memory", "cpu", "descriptors", "socket", "disk"]
RESOURCES: tuple[Resource, ...] = get_args(Resource)
UNITS: Mapping[Resource, str] = {
    "memory": "MiB",
    "cpu": "cores",
    "descriptors": "descriptors",
    "socket": "MiB/s",
    "disk": "MiB/s",
}
FIELDS: Mapping[Resource, str] = {
    "memory": "memory_mib_max",
    "cpu": "cpu_cores_max",
    "descriptors": "descriptors_max",
    "socket": "socket_mib_per_s_max",
    "disk": "disk_mib_per_s_max",
}
"""The field of `infrastructure` in the policy that declares each resource."""
REMEDIES: Mapping[Resource, str] = {
    "memory": "ask for less at once, deploy fewer versions, or declare more",
    "cpu": "spread the load over more replicas, or declare more",
    "descriptors": "close idle clients, lower connections_max, or declare more",
    "socket": "send smaller tensors or fewer requests, or declare more",
    "disk": "look for scans of large sources, or declare more",
}

BUILT_IN: Mapping[ServiceName, Mapping[Resource, float]] = {
    "orchestrator": {
        "memory": 4_096, "cpu": 1.0, "descriptors": 16_384, "socket": 2_048, "disk": 256,
    },
    "control_plane": {
        "memory": 2_048, "cpu": 1.0, "descriptors": 4_096, "socket": 512, "disk": 256,
    },
    "data_fabric": {
        "memory": 4_096, "cpu": 2.0, "descriptors": 4_096, "socket": 2_048, "disk": 512,
    },
    "model_runtime": {
        "memory": 8_192, "cpu": 2.0, "descriptors": 4_096, "socket": 2_048, "disk": 512,
    },
}  # fmt: skip
"""Limits in UNITS. A runtime's memory and CPU follow `[runtime]` of the home: `memory_mib_max`, and
`threads` beside the one that its loop is on."""
REACTIONS: Mapping[ServiceName, MemoryReaction] = {
    "orchestrator": "shed",
    "control_plane": "alarm",
    "data_fabric": "shed",
    "model_runtime": "unload",
}


@dataclass(frozen=True, slots=True)
class Terms:
    """The contract of one service's processes, complete. A resource is alarmed at `alarm_share` of
    its limit, until it is below `over_share` of it again."""

    limits: Mapping[Resource, float]
    alarm_share: float
    over_share: float
    memory_reaction: MemoryReaction
    shed_classes: tuple[int, ...]


def terms_of(
    service: ServiceName, spec: InfrastructureSpec | None, home: Mapping[Resource, float]
) -> Terms:
    """By the policy where it says something, else by the `home`, else built in."""
    spec = InfrastructureSpec() if spec is None else spec
    limits = {**BUILT_IN[service], **home}
    for resource in RESOURCES:
        declared = getattr(spec, FIELDS[resource])
        if declared is not UNSET:
            limits[resource] = declared
    declared = spec.memory_reaction
    return Terms(
        limits=limits,
        alarm_share=spec.alarm_share,
        over_share=spec.over_share,
        memory_reaction=REACTIONS[service] if declared is UNSET else declared,
        shed_classes=tuple(sorted(int(risk) for risk in spec.shed_classes)),
    )
