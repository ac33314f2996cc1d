"""The orchestrator's metrics: requests by status, time by stage, rows by batch. Labels are models,
versions, stages and statuses, never tenants; names that a client made up count as `unknown`."""

from collections.abc import Sequence

from contracts.errors import MeshError
from contracts.service import Metric
from contracts.stages import BUDGET_MS, STAGES
from services.orchestrator.plan import ModelPlan
from shared.metrics import Counter, Distribution, Gauge, Histogram, Registry, Value

ROWS_BUCKETS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1_024.0)
DIFFERENCE_BUCKETS = (0.0, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1, 1.0, 10.0)
BUDGETS_US = [BUDGET_MS[stage] * 1_000 for stage in STAGES]
REFUSAL_BUCKETS = (1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 1e-1)
GAUGES = (
    ("ai_requests_in_flight", "Requests admitted and not ended."),
    ("ai_queue_rows", "Rows that wait for a replica."),
    ("ai_spool_records", "Receipts that the control plane has not acknowledged."),
    ("ai_spool_bytes", "Bytes of the spool's files."),
    ("ai_breakers_out", "Versions whose breaker is open or half-open."),
)
OWN_STAGES = tuple(map(STAGES.index, ("queue", "features", "reply")))
"""Stages of one request; the others are its batch's, in a row from this one on:"""
SHARED_STAGE = STAGES.index("batch")
kept_max = 256
"""Answers or batches of a version; counting them takes a quarter of a millisecond."""
UNKNOWN, NO_VERSION = "unknown", "-"


class Handles:
    """The series of one model version. What is observed is kept and counted later, together: a
    tight loop costs a third of counting each where it happens."""

    def __init__(
        self,
        ok: Value,
        stages: list[Distribution],
        overspent: list[Value],
        total: Distribution,
        rows: Distribution,
    ) -> None:
        self.ok = ok
        self.stages = stages
        self.overspent = overspent
        self.total = total
        self.rows = rows
        self.totals_us: list[int] = []
        self.own_us: list[list[int]] = [[] for _ in OWN_STAGES]
        """In the order of `OWN_STAGES`; a stage that took no time was not there."""
        self.batches: list[tuple[int, int, Sequence[int]]] = []

    def fold(self) -> None:
        """Count what was kept."""
        totals_us, self.totals_us = self.totals_us, []
        batches, self.batches = self.batches, []
        self.ok.value += len(totals_us)
        self.total.observe_us(totals_us)
        for stage, values_us in zip(OWN_STAGES, self.own_us, strict=True):
            self.stages[stage].observe_us(values_us)
            over, budget_us = 0, BUDGETS_US[stage]
            for value_us in values_us:
                if value_us > budget_us:
                    over += 1
            self.overspent[stage].value += over
            values_us.clear()
        for rows, requests, shared_us in batches:
            self.rows.observe(rows)
            for stage, value_us in enumerate(shared_us, start=SHARED_STAGE):
                if value_us:
                    self.stages[stage].observe_us([value_us], requests)
                if value_us > BUDGETS_US[stage]:
                    self.overspent[stage].value += requests


class Observed:
    """Everything that is counted; the loop's thread only."""

    def __init__(self) -> None:
        self._registry = registry = Registry()
        names = ("model", "version")
        self._requests = registry.add(
            Counter("ai_request_total", "Requests by how they ended.", (*names, "status"))
        )
        self._stages = registry.add(
            Histogram("ai_stage_seconds", "Time of answered requests by stage.", (*names, "stage"))
        )
        self._overspent = registry.add(
            Counter(
                "ai_budget_exceeded_total",
                "Stages of requests that took longer than their share of the budget.",
                (*names, "stage"),
            )
        )
        self._late = registry.add(
            Counter(
                "ai_deadline_exceeded_total", "Missed deadlines by who had the request.",
                ("stage", "hop"),
            )
        )  # fmt: skip
        self._total = registry.add(
            Histogram("ai_request_seconds", "Time from frame to reply of answered requests.", names)
        )
        self._refusals = registry.add(
            Histogram("ai_refusal_seconds", "Time from frame to refusal.", (), REFUSAL_BUCKETS)
        )
        self._rows = registry.add(
            Histogram("ai_batch_rows", "Rows of the batches that came back.", names, ROWS_BUCKETS)
        )
        self._tokens = registry.add(
            Counter(
                "ai_batch_tokens_total",
                "Tokens of the batches that came back: real ones and padding.",
                (*names, "kind"),
            )
        )
        self._fallbacks = registry.add(
            Counter(
                "ai_fallback_total",
                "Requests for a model that went to its declared fallback.",
                ("model", "fallback", "version"),
            )
        )
        self._freshness = registry.add(
            Counter(
                "ai_feature_answers_total",
                "Answers from features, by whether these were past their view's freshness_s.",
                (*names, "freshness"),
            )
        )
        self._breakers = registry.add(
            Counter(
                "ai_breaker_total", "Transitions of breakers, by the new state.", (*names, "state")
            )
        )
        self._shadows, self._differences, self._labels = _shadow_families(registry, names)
        self._gauges = {name: registry.add(Gauge(name, text)) for name, text in GAUGES}
        self._handles: dict[ModelPlan, Handles] = {}

    def answered(
        self, plan: ModelPlan, total_us: int, queue_us: int, features_us: int, reply_us: int
    ) -> None:
        """An answer left. The stages that it shares with its batch are counted there."""
        handles = self._of(plan)
        handles.totals_us.append(total_us)
        queues, features, replies = handles.own_us
        if queue_us:
            queues.append(queue_us)
        if features_us:
            features.append(features_us)
        if reply_us:
            replies.append(reply_us)
        if len(handles.totals_us) >= kept_max:
            handles.fold()

    def computed(self, plan: ModelPlan, rows: int, requests: int, shared_us: Sequence[int]) -> None:
        """A batch came back; `shared_us` are the stages from batch to postprocess."""
        handles = self._of(plan)
        handles.batches.append((rows, requests, shared_us))
        if len(handles.batches) >= kept_max:
            handles.fold()

    def padded(self, plan: ModelPlan, real: int, computed: int) -> None:
        """A token model's batch came back: so many of the tokens that it computed were real."""
        names = (plan.name, plan.version)
        self._tokens.labels(*names, "real").add(real)
        self._tokens.labels(*names, "padding").add(computed - real)

    def featured(self, plan: ModelPlan, is_stale: bool) -> None:
        """An answer was made from features whose freshness is known."""
        freshness = "stale" if is_stale else "fresh"
        self._freshness.labels(plan.name, plan.version, freshness).add(1)

    def refused(self, model: str | None, error: str, took_s: float) -> None:
        """A request was refused at the door; `model` is None unless it was published."""
        self._refusals.labels().observe(took_s)
        self._requests.labels(model or UNKNOWN, NO_VERSION, error).add(1)

    def ended(self, plan: ModelPlan, error: str) -> None:
        """An admitted request ended with this error."""
        self._requests.labels(plan.name, plan.version, error).add(1)

    def exceeded(self, error: MeshError) -> None:
        """An admitted request ended with this DEADLINE_EXCEEDED, wherever it was found."""
        details = error.details or {}
        hop = str(details.get("hop", UNKNOWN)).partition(".")[0]
        self._late.labels(str(details.get("stage", UNKNOWN)), hop).add(1)

    def fell_back(self, model: str, plan: ModelPlan) -> None:
        """A request for `model` goes to its fallback."""
        self._fallbacks.labels(model, plan.name, plan.version).add(1)

    def breaker(self, plan: ModelPlan, state: str) -> None:
        """A version's breaker is in this state from now on."""
        self._breakers.labels(plan.name, plan.version, state).add(1)

    def shadow(self, plan: ModelPlan, status: str, count: int) -> None:
        """Copies were answered, failed or dropped."""
        self._shadows.labels(plan.name, plan.version, status).add(count)

    def compared(self, plan: ModelPlan, apart: float, labels: int, agreeing: int) -> None:
        """A copy's outputs are so far from the answer's; so many of its labels are the same."""
        names = (plan.name, plan.version)
        self._differences.labels(*names).observe(apart)
        if labels:
            self._labels.labels(*names, "yes").add(agreeing)
            self._labels.labels(*names, "no").add(labels - agreeing)

    def forget(self, keep: set[ModelPlan]) -> None:
        """Only these versions serve from now on; the series of the others stay as they are."""
        self._fold()
        self._handles = {plan: row for plan, row in self._handles.items() if plan in keep}

    def collect(self, **gauges: float) -> list[Metric]:
        """Every family, with the gauges as they are now."""
        for name, value in gauges.items():
            self._gauges[name].labels().set(value)
        self._fold()
        return self._registry.collect()

    def _fold(self) -> None:
        for handles in self._handles.values():
            handles.fold()

    def _of(self, plan: ModelPlan) -> Handles:
        handles = self._handles.get(plan)
        if handles is None:
            names = (plan.name, plan.version)
            handles = self._handles[plan] = Handles(
                self._requests.labels(*names, "ok"),
                [self._stages.labels(*names, stage) for stage in STAGES],
                [self._overspent.labels(*names, stage) for stage in STAGES],
                self._total.labels(*names),
                self._rows.labels(*names),
            )
        return handles


def _shadow_families(
    registry: Registry, names: tuple[str, str]
) -> tuple[Counter, Histogram, Counter]:
    """Copies, their differences, and their labels."""
    copies = Counter(
        "ai_shadow_total", "Copies for shadow versions by what became of them.", (*names, "status")
    )
    differences = Histogram(
        "ai_shadow_difference",
        "Largest absolute difference of a copy's outputs from the answer's.",
        names,
        DIFFERENCE_BUCKETS,
    )
    labels = Counter(
        "ai_shadow_labels_total",
        "Labels of copies by whether the answer's were the same.",
        (*names, "agree"),
    )
    return registry.add(copies), registry.add(differences), registry.add(labels)
