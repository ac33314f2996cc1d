"""What the next request of a version would wait for: the costs of its batches, what waits, and who
computes. Collects the figures that `shedding` judges by; reads no clock.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import ceil

from contracts.execution import Executed
from contracts.inference import InferenceRequest
from contracts.policies import PolicySet, SlaPolicy, SlaSpec
from contracts.types import Scalar
from services.orchestrator.bounds import EVERY
from services.orchestrator.config import cost_batches_kept
from services.orchestrator.cost import CostModel
from services.orchestrator.execution import Batch
from services.orchestrator.fairness import RiskClass
from services.orchestrator.lead import Lead
from services.orchestrator.plan import ModelPlan
from services.orchestrator.queue import Lane, Queue
from services.orchestrator.replica import Replica
from services.orchestrator.reserve import SHARED
from services.orchestrator.shedding import Pace, Shares, batches_always, judge, rows_before
from services.orchestrator.tokens import TokenRows

least_row_s = 1e-6
"""A row is not taken for cheaper, so that nothing is charged for without bound."""
_ease = 16.0
"""The least share of the built-in weights is 1/16: a queue that would be served in a sixteenth of
the time there is needs no closer look."""


class Fit:
    """What one kind of batches costs. Rows that wait are counted as `Part.charge` does; of a token
    model such a row came, lately, to `rows_per` real rows and `tokens_per` tokens."""

    def __init__(self) -> None:
        self.cost = CostModel()
        self.rows_per = 1.0
        self.tokens_per = 0.0
        self._charged = 0.0

    def learn(self, batch: Batch, forward_s: float, overhead_s: float) -> None:
        """A batch came back."""
        self.cost.add(batch.rows, forward_s, overhead_s, batch.tokens)
        if batch.tokens:
            before = self._charged * (1.0 - 1.0 / cost_batches_kept)
            self._charged = before + batch.charge
            self.rows_per = (self.rows_per * before + batch.rows) / self._charged
            self.tokens_per = (self.tokens_per * before + batch.tokens) / self._charged

    def batch_s(self, rows: float) -> float:
        """The expected forward of a batch of so many rows as they are counted."""
        if self.tokens_per:
            return self.cost.predict_s(rows * self.rows_per, rows * self.tokens_per)
        return self.cost.predict_s(rows)


class Known:
    """What has been learnt of one version. While no more than `calm_rows` wait in `lane`, a request
    that has at least `calm_s` is in time whatever its class: no closer look is needed.

    Batches of one lone part are fitted apart, as `lone`: their rows are long ones, of which a token
    costs more (attention is quadratic). `fit` is what to go by: that of all other batches, unless
    hardly anything but lone parts came."""

    def __init__(self, plan: ModelPlan) -> None:
        self.what = f"{plan.name} {plan.version}"
        self.fit = self.joined = Fit()
        self.lone: Fit | None = None
        self.lead = Lead()
        self.shares: Shares | None = None
        self.lane: Lane | None = None
        self.calm_rows = 0
        self.calm_s = 0.0

    def learn(self, batch: Batch, forward_s: float, overhead_s: float) -> None:
        """A batch came back."""
        if not batch.is_lone:
            self.joined.learn(batch, forward_s, overhead_s)
            if self.joined.cost.is_known or self.lone is None:
                self.fit = self.joined
            return
        if self.lone is None:
            self.lone = Fit()
        self.lone.learn(batch, forward_s, overhead_s)
        if not self.joined.cost.is_known:
            self.fit = self.lone


class Forecast:
    """The costs of every version that served, and the predictions that follow from them."""

    def __init__(
        self, queue: Queue, given: Callable[[ModelPlan], Mapping[int, Sequence[Replica]]]
    ) -> None:
        self.shed = 0
        self._queue = queue
        self._given = given
        self._known: dict[ModelPlan, Known] = {}
        self._patience_s: dict[str, float] = {}
        self._default_s = patience_s(SlaSpec())

    def apply(self, policies: PolicySet, keep: Iterable[ModelPlan]) -> None:
        """The SLAs from now on; only versions in `keep` are remembered."""
        found = {
            policy.name: patience_s(policy.spec)
            for policy in policies.policies
            if isinstance(policy, SlaPolicy)
        }
        self._default_s = found.pop(EVERY, patience_s(SlaSpec()))
        self._patience_s = found
        kept = set(keep)
        self._known = {plan: known for plan, known in self._known.items() if plan in kept}
        for known in self._known.values():
            known.lane = None  # looked at closely until the next batch came back

    def expected_s(self, batch: Batch) -> float:
        """Its forward; 0 while that is not known."""
        known = self._known.get(batch.plan)
        if known is None:
            return 0.0
        fit = known.fit
        if batch.is_lone and known.lone is not None and known.lone.cost.is_known:
            fit = known.lone
        return fit.cost.predict_s(batch.rows, batch.tokens)

    def charged(self, plan: ModelPlan, given: TokenRows, rows_max: int) -> TokenRows:
        """What a request's lone parts are charged, once it is known what such batches cost: the
        full batches of `rows_max` rows that would be computed meanwhile."""
        known = self._known.get(plan)
        lone = None if known is None else known.lone
        if known is None or lone is None or not lone.cost.is_known:
            return given
        if not known.joined.cost.is_known:
            return given
        row_s = max(known.joined.batch_s(rows_max) / rows_max, least_row_s)
        spans = []
        for span in given.spans:
            if span.is_alone:
                took_s = lone.cost.predict_s(span.rows, span.rows * span.longest)
                span = span._replace(charge=max(span.rows, ceil(took_s / row_s)))
            spans.append(span)
        return given._replace(spans=spans, charge=sum([span.charge for span in spans]))

    def wanted_s(self, plan: ModelPlan, replica: Replica) -> float:
        """From when a busy replica needs a batch of this version to go on without a pause; 0, which
        is long ago, while too little is known of its cost."""
        known = self._known.get(plan)
        if known is None or not known.fit.cost.is_known:
            return 0.0
        return replica.free_s - known.lead.seconds

    def learn(self, batch: Batch, executed: Executed) -> None:
        """A batch came back."""
        plan = batch.plan
        known = self._known.get(plan)
        if known is None:
            known = self._known[plan] = Known(plan)
        forward_s = executed.forward_us * 1e-6
        wait_s = executed.wait_us * 1e-6
        if batch.was_kept_back:
            known.lead.met(wait_s)
        away_s = batch.answered_s - batch.sent_s - wait_s
        known.learn(batch, forward_s, max(0.0, away_s - forward_s))
        lane = self._queue.lane_of(plan)
        if lane is not None:
            if known.shares is None:
                known.shares = Shares(len(lane.classes))
            known.shares.observe(lane.classes, batch.answered_s)
        self._calm(plan, known, lane)

    def _calm(self, plan: ModelPlan, known: Known, lane: Lane | None) -> None:
        """How many rows may wait before requests are looked at one by one: with every runtime as
        busy as it gets, and served in the least share of the time."""
        known.lane = lane
        replicas = min(map(len, self._given(plan).values()), default=0)
        if lane is None or not replicas:
            known.lane = None
            return
        known.calm_s = self._patience_s.get(plan.name, self._default_s)
        pace = self._pace(known, lane.window.rows_max, lane, replicas, 0.0)
        spare_s = known.calm_s - pace.overhead_s - batches_always * pace.batch_s
        batches = spare_s * replicas / pace.batch_s - 1.0
        known.calm_rows = int(batches * pace.rows_max / _ease)

    def admit(
        self, plan: ModelPlan, body: InferenceRequest, rows: int, deadline_s: float, now_s: float
    ) -> None:
        """Raises OVERLOADED, with the reason, for a request that would be answered too late; `rows`
        as they are counted (`Part.charge`)."""
        known = self._known.get(plan)
        if known is None:
            return
        calm = known.lane
        if (
            calm is not None
            and calm.rows + rows <= known.calm_rows
            and deadline_s - now_s >= known.calm_s
        ):
            return
        if known.fit.cost.is_known:
            self._look(known, plan, body, rows, deadline_s, now_s)

    def _look(
        self,
        known: Known,
        plan: ModelPlan,
        body: InferenceRequest,
        rows: int,
        deadline_s: float,
        now_s: float,
    ) -> None:
        lane = self._queue.lane_of(plan)
        given = self._given(plan)
        risk = body.risk_level
        replicas = given.get(risk) or given.get(SHARED)
        if lane is None or not replicas:
            return
        busy_s = 0.0
        for replica in replicas:
            if replica.free_s > now_s:
                busy_s += replica.free_s - now_s
        if busy_s == 0.0 and not lane.rows:
            return  # it is computed at once: if even that is too late, the cost was learnt wrong
        patience_s = self._patience_s.get(plan.name, self._default_s)
        left_s = deadline_s - now_s
        pace = self._pace(known, max(1, lane.rows), lane, len(replicas), busy_s)
        if pace.done_s(_ease * (lane.rows + rows)) + pace.overhead_s < min(patience_s, left_s):
            return
        before = self._rows_before(known, lane, given, pace, body, deadline_s)
        error = judge(pace, before, rows, left_s, patience_s, known.what)
        if error is not None:
            self.shed += 1
            raise error

    def _pace(self, known: Known, waiting: int, lane: Lane, replicas: int, busy_s: float) -> Pace:
        rows_max = lane.window.rows_max
        return Pace(
            batch_s=max(1e-9, known.fit.batch_s(min(rows_max, waiting))),
            rows_max=rows_max,
            replicas=replicas,
            busy_s=busy_s / replicas,
            overhead_s=known.fit.cost.overhead_s,
        )

    def _rows_before(
        self,
        known: Known,
        lane: Lane,
        given: Mapping[int, Sequence[Replica]],
        pace: Pace,
        body: InferenceRequest,
        deadline_s: float,
    ) -> float:
        """See `shedding.rows_before`; a class with replicas of its own competes with nobody."""
        risk = body.risk_level
        mine = lane.classes[risk - 1]
        others: list[RiskClass] = []
        used = 0.0
        if risk not in given:
            for index, each in enumerate(lane.classes):
                if each is not mine and each.risk_level not in given:
                    others.append(each)
                    if known.shares is not None:
                        used += known.shares.rates[index]
        flow = lane.flow_of(risk, body.tenant_id)
        own = 0.0 if flow is None else flow.rows_until(deadline_s)
        tenants = max(1, len(mine.heap))
        return rows_before(own, tenants, mine, others, min(1.0, used / pace.rows_per_s))

    def statistics(self) -> dict[str, Scalar]:
        """The fitted costs of each version, in microseconds, and how many requests were shed."""
        found: dict[str, Scalar] = {"infer_shed": self.shed}
        for known in self._known.values():
            fit, lone = known.fit, known.lone
            cost = fit.cost
            found[f"cost_batch_us {known.what}"] = round(cost.batch_s * 1e6, 1)
            found[f"cost_row_us {known.what}"] = round(cost.row_s * 1e6, 2)
            if fit.tokens_per:
                found[f"cost_token_us {known.what}"] = round(cost.token_s * 1e6, 3)
            if lone is not None:
                found[f"cost_lone_batch_us {known.what}"] = round(lone.cost.batch_s * 1e6, 1)
                found[f"cost_lone_token_us {known.what}"] = round(lone.cost.token_s * 1e6, 3)
            found[f"cost_overhead_us {known.what}"] = round(cost.overhead_s * 1e6, 1)
            found[f"cost_batches {known.what}"] = cost.batches
        return found


def patience_s(spec: SlaSpec) -> float:
    """How long the requests of a model may wait before more are refused."""
    return spec.p99_ms * spec.shed_factor / 1e3
