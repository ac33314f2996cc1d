"""The control plane's process: opens what it keeps, wires the handlers, tells its readiness."""

import asyncio
import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from contracts.errors import MeshError
from contracts.service import Metric
from contracts.types import Scalar
from services.control_plane import first_policies
from services.control_plane.accounts import Accounts
from services.control_plane.changes import Author
from services.control_plane.commit_store import CommitStore
from services.control_plane.committer import Committer, settle_s
from services.control_plane.counters import Counters
from services.control_plane.distributor import Distributor
from services.control_plane.first_policies import FirstPoliciesError
from services.control_plane.ledger import Ledger
from services.control_plane.naming import Naming
from services.control_plane.promotion import Promotion
from services.control_plane.reading import Reading
from services.control_plane.signing import Signing, runtime_terms
from services.control_plane.writing import Writing
from shared import logs
from shared.environment import Environment
from shared.home import socket_path
from shared.rpc.client import RpcClient
from shared.rpc.server import Handler
from shared.service import Readiness, Service

log = logs.get("services.control_plane")


class ControlPlane(Service):
    """Policies, their log and their distribution; receipts and what they tell."""

    name = "control_plane"

    def __init__(self, environment: Environment, *, settle_s: float = settle_s) -> None:
        super().__init__(environment)
        clock, models_dir = environment.clock, environment.home / "models"
        folder = environment.home / ".mortise"
        self._counters = Counters()
        self._store = CommitStore.at(folder)
        self._ledger = Ledger.at(folder)
        self._distributor = Distributor(clock, self._counters)
        self._committer = Committer(
            self._store,
            self._distributor,
            models_dir=models_dir,
            replicas=environment.replicas,
            replicas_max=environment.replicas_max,
            clock=clock,
            settle_s=settle_s,
        )
        self._fabric, self._orchestrator = (
            RpcClient(str(socket_path(environment.run_dir, service)), service, clock=clock)
            for service in ("data_fabric", "orchestrator")
        )
        self._promotion = Promotion(
            self._committer, self._distributor, self._orchestrator, models_dir, clock
        )
        self._accounts = Accounts(self._ledger, self._counters)
        self._reading = Reading(self._store, self._ledger, self._distributor, clock)
        self._signing = Signing(
            self._store,
            self._committer,
            self._distributor,
            models_dir,
            runtime_terms(environment.home),
        )
        self._writing = Writing(
            self._store, self._committer, self._promotion, self._signing, models_dir
        )
        self._naming = Naming(
            self._store,
            self._ledger,
            self._accounts,
            self._distributor,
            self._fabric,
            models_dir=models_dir,
            infra=environment.infra,
            clock=clock,
        )

    def handlers(self) -> Mapping[str, Handler]:
        """Every method of the control plane."""
        return {
            "apply": self._writing.apply,
            "publish": self._writing.publish,
            "promote": self._writing.promote,
            "rollback": self._writing.rollback,
            "policies": self._reading.policies,
            "commits": self._reading.commits,
            "verify": self._reading.verify,
            "diff": self._reading.diff,
            "status": self._reading.status,
            "contracts": self._signing.contracts,
            "contracts_sign": self._signing.sign,
            "snapshot": self._naming.snapshot,
            "trace": self._accounts.trace,
            "receipts": self._accounts.receipts,
            "subscribe": self._distributor.subscribe,
            "acknowledge": self._distributor.acknowledge,
            "report": self._distributor.report,
        }

    async def start(self) -> None:
        """Open the databases, walk the log, and begin it in an empty home.

        Raises DatabaseError and FirstPoliciesError, which refuse the start with the remedy.
        """
        clock, startup = self.environment.clock, self.environment.startup
        begun_s = clock.monotonic()
        await self._store.database.open()
        await self._ledger.open()
        startup.add("open", clock.monotonic() - begun_s)
        begun_s = clock.monotonic()
        await self._committer.load()
        head = self._distributor.head
        if head is not None and head.position.sequence == 0:
            await self._begin(self.environment.home / first_policies.NAME)
        startup.add("policies", clock.monotonic() - begun_s)
        for client in (self._fabric, self._orchestrator):
            with contextlib.suppress(MeshError):  # it goes on dialling in the background
                await client.connect(0.0)

    async def drain(self) -> None:
        """Finish commits, then close the files."""
        await self._promotion.close()
        await self._committer.close()
        self._distributor.close()
        await self._fabric.close()
        await self._orchestrator.close()
        await self._store.database.close()
        await self._ledger.database.close()

    def readiness(self) -> Readiness:
        """Not ready while the log lies; degraded while a disk is full."""
        head = self._distributor.head
        full = [
            f"the disk of {database.path.name} is full"
            for database in (self._store.database, self._ledger.database)
            if database.is_full
        ]
        fault = [] if self._committer.fault is None else [self._committer.fault]
        return Readiness(
            ready=head is not None,
            degraded=bool(full or fault),
            reasons=fault + full,
            policy_version=0 if head is None else head.policies.version,
        )

    def statistics(self) -> dict[str, Scalar]:
        """Counters and gauges."""
        head, totals = self._distributor.head, self._ledger.totals
        return {
            "policy_version": 0 if head is None else head.policies.version,
            "instances": len(self._distributor.instances.by_name),
            "receipts": totals.receipts,
            "requests_counted": totals.requests,
            "receipts_duplicate": self._accounts.duplicates,
            "receipts_unreadable": self._accounts.unreadable,
        }

    def metrics(self) -> list[Metric]:
        """Pushes, receipts, instances."""
        rows = self._distributor.instances.rows(self.environment.clock.monotonic())
        return self._counters.metrics(self.readiness().policy_version, rows)

    async def _begin(self, path: Path) -> None:
        """An empty control plane commits the home's file as version 1. Raises FirstPoliciesError,
        which refuses the start."""
        policies = await asyncio.to_thread(first_policies.load, path)
        if policies is None:
            log.warning("no_first_policies", file=path.name)
            return
        author = Author(path.name, "the home's first policies", os.getuid())
        try:
            await self._committer.begin(policies, author)
        except MeshError as error:
            raise FirstPoliciesError(f"{path.name}: {error.message}") from error
