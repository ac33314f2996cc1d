"""The policies that the mesh runs under, as the supervisor sees them: the orchestrator's last good
set on disk, which is there with and without a control plane.
"""

from pathlib import Path

from contracts.infrastructure import Resource, Terms, terms_of
from contracts.policies import (
    VERSION_0,
    PolicySet,
    PriorityPolicy,
    PrioritySpec,
    ServiceName,
    SlaPolicy,
)
from shared import logs
from shared.home import RuntimeTable
from shared.last_good import LastGoodFile

log = logs.get("supervisor.in_force")
EVERY = "*"


class InForce:
    """Read again only when the version changes. `home` is what `[runtime]` says of a runtime."""

    def __init__(self, policy_dir: Path, runtime: RuntimeTable) -> None:
        self.policies: PolicySet = VERSION_0
        self._file = LastGoodFile(policy_dir, "orchestrator", "supervisor")
        self._home: dict[Resource, float] = {
            "memory": runtime.memory_mib_max,
            "cpu": runtime.threads + 1,
        }
        self._unreadable = -1
        self._terms: dict[str, Terms] = {}

    def look(self, version: int) -> None:
        """The orchestrator has this policy version in force."""
        if version in (self.policies.version, self._unreadable):
            return
        stored, reason = self._file.read()
        if stored is None:
            self._unreadable = version
            log.warning("policies_unread", policy_version=version, reason=reason)
            return
        self.policies = stored.policies
        self._terms.clear()

    def terms(self, service: ServiceName) -> Terms:
        """What each process of a service may use."""
        terms = self._terms.get(service)
        if terms is None:
            policy = self.policies.find("sla", EVERY)
            spec = (
                policy.spec.infrastructure.get(service) if isinstance(policy, SlaPolicy) else None
            )
            home = self._home if service == "model_runtime" else {}
            terms = self._terms[service] = terms_of(service, spec, home)
        return terms

    @property
    def priority(self) -> PrioritySpec:
        """The policy of the risk classes."""
        policy = self.policies.find("priority", EVERY)
        return policy.spec if isinstance(policy, PriorityPolicy) else PrioritySpec()
