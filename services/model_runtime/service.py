"""The model runtime: holds what the deployments name, and executes batches.

A batch is computed on the compute thread, or on the loop when that is cheaper than the way there;
never two batches at once, so the model's buffers have one user.
"""

import asyncio
import gc
import sys
from collections.abc import Mapping

from contracts.errors import MeshError
from contracts.execution import Execute, Executed, Memory
from contracts.pack import LoadedModels
from contracts.service import Metric
from contracts.types import Scalar
from services.model_runtime import memory
from services.model_runtime.backends.torch_module import pin_numerics
from services.model_runtime.batch import Batch, check_counts
from services.model_runtime.budget import mib, used_bytes
from services.model_runtime.config import (
    credits_batches,
    failed_requests_logged_max,
    leave_s,
    queue_batches_max,
    start_wait_s,
    switch_interval_s,
    young_objects_max,
)
from services.model_runtime.costs import Costs
from services.model_runtime.counters import Counters
from services.model_runtime.generations import Generations, LoadTimes
from services.model_runtime.loading import Loader
from services.model_runtime.model import Model, Outcome
from services.model_runtime.reconciler import Reconciler
from services.model_runtime.watch import Watch, Watched
from services.model_runtime.worker import Raised, Worker, attempt
from shared import logs
from shared.channel import Pressure
from shared.environment import Environment
from shared.pack_cache import VerifiedCache
from shared.policy_follower import PolicyFollower, ReportParts
from shared.polling import Poller
from shared.rpc.call import Deferred
from shared.rpc.server import DEFERRED, Call, Handler
from shared.service import Readiness, Service, Unfit

log = logs.get("services.model_runtime")


class ModelRuntime(Service):
    """One replica."""

    name = "model_runtime"

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._clock = environment.clock
        self._generations: Generations[Model] = Generations()
        self._counters = Counters()
        self._poller = Poller(environment.clock, environment.config.poll_us / 1e6)

    def handlers(self) -> Mapping[str, Handler]:
        """See `Service`."""
        return {"execute": self._execute, "models": self._models, "memory": self._memory}

    async def start(self) -> None:
        """Follow the policies; with a last-good set on disk, wait for its models (bounded), so
        that a restarted runtime accepts when it can answer."""
        sys.setswitchinterval(switch_interval_s)
        gc.set_threshold(young_objects_max)
        threads = self.environment.config.threads
        pin_numerics(threads)  # this thread computes small batches itself
        self._compute_thread = Worker("compute", lambda: pin_numerics(threads))
        self._watch = Watch(self._compute_thread, self._clock, self._on_hung)
        self._loader_thread = Worker("loader", lambda: pin_numerics(threads))
        home = self.environment.home
        self._reconciler = Reconciler(
            self._generations,
            Loader(
                models_dir=home / "models",
                cache=VerifiedCache(home / "models", home / ".mortise/verified", self._clock),
                memory_mib_max=self.environment.config.memory_mib_max,
                clock=self._clock,
                costs=Costs(home / ".mortise/costs", self.environment.infra, threads),
                backends=self.environment.config.backends,
            ),
            self._loader_thread,
            self._compute_thread,
            self._clock,
            index=self.environment.index,
            budget_bytes=self.environment.config.memory_mib_max * mib,
            on_change=self._on_load_ended,
        )
        self._follower = PolicyFollower(
            self.environment,
            check=self._reconciler.check,
            activate=self._reconciler.activate,
            report=lambda: ReportParts(self.readiness().ready, self._generations.rows()),
        )
        await self._follower.start()
        try:
            async with asyncio.timeout(start_wait_s):
                await self._reconciler.settled.wait()
        except TimeoutError:
            log.warning("start_without_all_models", reasons=self.readiness().reasons)

    async def promoted(self) -> None:
        """See `Service`."""
        await self._follower.promoted()

    async def drain(self) -> None:
        """See `Service`."""
        await self._follower.close()
        self._compute_thread.close()
        self._loader_thread.close()

    def pressed(self, pressure: Pressure) -> None:
        """See `Service`: let go of what nothing routes to, a version at a time."""
        if pressure.unload:
            self._reconciler.relieve(pressure.reason)

    def readiness(self) -> Readiness:
        """Ready: a policy version is in force and everything it deploys here serves or has
        failed; a failed version degrades."""
        wanted = self._generations.wanted()
        loading = [f"{held.name} {held.version} is loading" for held in wanted if held.is_awaited]
        failed = [
            f"{held.name} {held.version} failed: {held.reason}"
            for held in wanted
            if held.state == "failed"
        ]
        version, is_fenced = self._follower.current.version, self._follower.fenced
        reasons = [*failed, *loading]
        if version == 0:
            reasons.append("no policy version yet")
        if is_fenced:
            reasons.append(f"policy version {version} is not the newest")
        return Readiness(
            ready=version > 0 and not loading and not is_fenced,
            degraded=bool(failed),
            reasons=reasons,
            policy_version=version,
        )

    def statistics(self) -> dict[str, Scalar]:
        """See `Service`."""
        return {
            **self._counters.statistics(),
            "batches_pending": self._compute_thread.pending,
            "budget_used_bytes": used_bytes(self._generations.held()),
            "polls": self._poller.polls,
            "polls_in_vain": self._poller.in_vain,
            "models_ready": sum(row.state == "ready" for row in self._generations.rows()),
            **self._follower.statistics(),
        }

    def metrics(self) -> list[Metric]:
        """See `Service`."""
        return self._counters.metrics()

    def _execute(self, call: Call) -> Deferred | Executed:
        """Hot path: no task, no future. What is raised here the server answers."""
        body, pending = call.body, self._compute_thread.pending
        if pending == 0:
            answer = self._quick(body, int(call.received_s * 1e6))
            if answer is not None:
                self._poller.touched(answer.outputs[0].shape[0] == 1)
                return answer
        elif pending >= queue_batches_max:
            raise MeshError(
                "OVERLOADED",
                f"{pending} batches are pending, queue_batches_max is {queue_batches_max}",
                retry_after_ms=10,
                details={"reason": "waiting"},
            )
        check_counts(body)
        generation = self._generations.acquire(body.model_name, body.model_version)
        generation.used_s = call.received_s
        batch = Batch(call, generation)
        if pending == 0 and batch.is_inline():
            self._counters.batches_inline += 1
            self._ended(batch, attempt(batch.compute))
        else:
            self._compute_thread.submit(
                batch.compute, lambda outcome: self._ended(batch, outcome), batch
            )
            if not self._watch.is_looking:
                self._watch.begin()
        return DEFERRED

    def _quick(self, body: Execute, received_us: int) -> Executed | None:
        """The answer to one of the commonest batches; nothing is pending. None: not one of them,
        or for others to judge. The server encodes it at once, out of the model's own memory."""
        generation = self._generations.serving(body.model_name, body.model_version)
        if (
            generation is None
            or generation.model is None
            or generation.model.quick is None
            or generation.unwanted_since_s is not None  # its last batch has to close it
        ):
            return None
        answer = generation.model.quick.run(body, received_us)
        if answer is None:
            return None
        generation.used_s = received_us * 1e-6
        counters = self._counters
        counters.batches_inline += 1
        rows = answer.outputs[0].shape[0]
        counters.count(generation.name, generation.version, rows, 0, answer.forward_us)
        return answer

    def _ended(self, batch: Batch, outcome: Outcome | Raised | None) -> None:
        generation = batch.generation
        self._generations.release(generation)
        if batch.is_given_up:
            return  # the process is about to leave
        if outcome is None:
            self._counters.batches_cancelled += 1
        elif isinstance(outcome, Raised):
            log.error("execute_defect", trace_id=batch.trace_id, exc_info=outcome.error)
            batch.fail(MeshError("INTERNAL", "a defect; the log has it under the trace id"))
            if isinstance(outcome.error, AssertionError):
                raise outcome.error
        else:
            failed, forward_us = len(outcome.errors), outcome.times.forward
            self._counters.count(
                generation.name, generation.version, batch.rows, failed, forward_us
            )
            if extra := outcome.times.extra_forwards:
                isolated = outcome.times.isolated_rows
                self._counters.isolated(generation.name, generation.version, isolated, extra)
            credits = max(0, credits_batches - self._compute_thread.pending)
            batch.answer(outcome, self._clock.monotonic_us(), credits)
        self._poller.touched(batch.rows == 1 and self._compute_thread.pending == 0)
        if generation.unwanted_since_s is not None:
            self._reconciler.collect()

    def _on_hung(self, job: Watched | None, age_s: float, limit_s: float) -> None:
        """Nothing ends a thread: what it holds up is answered or left to the successor, and this
        process leaves (decision 0016)."""
        if isinstance(job, Batch):
            key = job.generation
            what = f"model {key.name} version {key.version}: a forward of a batch of {job.rows}"
        else:
            what = "the first forward of a model"
        reason = f"{what} has run for {age_s:.1f} s, its limit is {limit_s:.1f} s"
        if isinstance(job, Batch):
            for trace_id in job.trace_ids[:failed_requests_logged_max]:
                log.error("forward_hung", trace_id=trace_id, reason=reason)
            job.give_up(MeshError("FORWARD_FAILED", f"{reason}; the runtime is replaced"))
        asyncio.get_running_loop().call_later(leave_s, self._leave, reason)

    def _leave(self, reason: str) -> None:
        raise Unfit(reason)

    def _models(self, call: Call) -> LoadedModels:
        return LoadedModels(models=self._generations.rows(), credits=credits_batches)

    def _memory(self, call: Call) -> Memory:
        return memory.used(
            self._generations.weights_bytes(),
            budget_bytes=self.environment.config.memory_mib_max * mib,
            predicted_bytes=used_bytes(self._generations.held()),
            measured_bytes=self._generations.measured_bytes(),
        )

    def _on_load_ended(self, times: LoadTimes) -> None:
        gc.collect()
        gc.freeze()  # what was loaded stays: no later collection walks it (P5)
        startup = self.environment.startup
        startup.add("verify", times.verify_us / 1e6)
        startup.add("map", times.map_us / 1e6)
        startup.add("warm", times.warm_us / 1e6)
        self._follower.report_now()
