"""Which CPU weight each runtime gets, and what stands for it where there are no cgroups. Pure.

A runtime that is reserved for a risk class gets that class's weight, a shared one the largest of
those that have no reserve: what a class with a reserve spills over there is served at that weight.
Where versions differ in their replicas, the largest weight that any of them wants is taken.
"""

import math
from dataclasses import dataclass

from contracts.policies import DeploymentPolicy, PolicySet, PrioritySpec
from shared.reservations import SHARED, reservations_of, roles

USUAL = 100
"""What every process has that nobody weighs: cgroup v2's default, and nice 0."""
NICE_MIN, NICE_MAX = -20, 19
_step = 1.25
"""One nice level is a quarter more or less. Source: sched(7), the kernel's sched_prio_to_weight."""


@dataclass(frozen=True, slots=True)
class Treatment:
    """How the kernel is told without a cgroup: a nice level, or SCHED_IDLE, whose weight is a third
    of a hundredth of the usual one."""

    nice: int
    is_idle: bool = False

    def __str__(self) -> str:
        return "SCHED_IDLE" if self.is_idle else f"nice {self.nice}"

    def is_above(self, other: "Treatment") -> bool:
        """Whether a change from `other` to this needs a privilege."""
        return (not self.is_idle, -self.nice) > (not other.is_idle, -other.nice)


def weights(policies: PolicySet, spec: PrioritySpec, replicas: int) -> list[int]:
    """The weight of each runtime, by index; USUAL where nothing asks for another."""
    found = [0] * replicas
    if spec.cpu_weights:
        by_risk = {int(risk): weight for risk, weight in spec.cpu_weights.items()}
        reservations = reservations_of(spec)
        for policy in policies.policies:
            if not isinstance(policy, DeploymentPolicy):
                continue
            for row in policy.spec.versions:
                count = min(row.replicas, replicas)
                given = roles(count, reservations)
                for index, role in enumerate(given):
                    wanted = _of_role(role, by_risk, set(given))
                    found[index] = max(found[index], wanted)
    return [weight or USUAL for weight in found]


def _of_role(role: int, by_risk: dict[int, int], given: set[int]) -> int:
    if role != SHARED:
        return by_risk[role]
    unreserved = [weight for risk, weight in by_risk.items() if risk not in given]
    return max(unreserved or by_risk.values())


def treatment(weight: int, usual_nice: int = 0) -> Treatment:
    """The nearest that nice levels can do, beside others at `usual_nice`; a weight of 1 is
    SCHED_IDLE."""
    if weight <= 1:
        return Treatment(usual_nice, is_idle=True)
    nice = usual_nice + round(math.log(USUAL / weight, _step))
    return Treatment(max(NICE_MIN, min(NICE_MAX, nice)))
