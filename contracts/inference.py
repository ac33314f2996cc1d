"""`infer`: one request and one response for classifiers, embeddings, tensors and language models.

Field names follow the Open Inference Protocol where it has one.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from contracts.errors import ErrorBody, MeshError
from contracts.limits import (
    list_items_max,
    message_characters_max,
    messages_max,
    new_tokens_max,
    parameters_max,
    rows_per_request_max,
    stop_sequences_max,
    tensor_dimensions_max,
    tensors_max,
    text_characters_max,
    text_items_max,
    token_ids_max,
)
from contracts.lineage import Lineage
from contracts.stages import Timing
from contracts.types import (
    NAME_PATTERN,
    UNSET,
    Digest,
    Identifier,
    Label,
    Open,
    Scalar,
    Strict,
    TraceId,
    UnsetType,
    Version,
    VersionOrAlias,
)

SoughtName = Annotated[
    str, Meta(min_length=1, max_length=128, extra_json_schema={"pattern": NAME_PATTERN})
]
"""A `Name` whose pattern is asked only when nothing has it: a published name keeps it, and to
match it would be a twentieth of what a request costs."""

Datatype = Literal[
    "BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64",
    "FP16", "BF16", "FP32", "FP64", "BYTES",
]  # fmt: skip
DATATYPE_BYTES: dict[str, int] = {
    "BOOL": 1, "INT8": 1, "INT16": 2, "INT32": 4, "INT64": 8,
    "UINT8": 1, "UINT16": 2, "UINT32": 4, "UINT64": 8,
    "FP16": 2, "BF16": 2, "FP32": 4, "FP64": 8,
}  # fmt: skip
"""Bytes of one element; BYTES has no fixed size."""

Dimension = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class Tensor(Strict, frozen=True, kw_only=True):
    """A tensor: `data` is little-endian C-order `bin` (not copied), or a flat list of numbers."""

    name: Label
    datatype: Datatype
    shape: Annotated[list[Dimension], Meta(max_length=tensor_dimensions_max)]
    data: memoryview | Annotated[list[int | float | bool | str], Meta(max_length=list_items_max)]


class Message(Strict, frozen=True, kw_only=True):
    """One turn of a chat; the template is in the pack."""

    role: Literal["system", "user", "assistant", "tool"]
    content: Annotated[str, Meta(max_length=message_characters_max)]


class Sampling(Strict, frozen=True, kw_only=True):
    """How a language model chooses tokens; temperature 0 is greedy."""

    max_new_tokens: Annotated[int, Meta(ge=1, le=new_tokens_max)] = 256
    temperature: Annotated[float, Meta(ge=0.0, le=2.0)] = 0.7
    top_k: Annotated[int, Meta(ge=1)] | UnsetType = UNSET
    top_p: Annotated[float, Meta(gt=0.0, le=1.0)] | UnsetType = UNSET
    stop: Annotated[list[str], Meta(max_length=stop_sequences_max)] | UnsetType = UNSET
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | UnsetType = UNSET
    logprobs: bool = False


TokenIds = Annotated[list[Annotated[int, Meta(ge=0)]], Meta(max_length=token_ids_max)]
Text = Annotated[str, Meta(min_length=1, max_length=text_characters_max)]
Rows = Annotated[
    msgspec.Raw,
    Meta(
        extra_json_schema={
            "type": "array",
            "items": {"type": "object"},
            "maxItems": rows_per_request_max,
        }
    ),
]

FORMS = ("inputs", "rows", "text", "input_ids", "messages")


class InferenceRequest(Strict, frozen=True, kw_only=True):
    """One prediction, exactly one of `FORMS` given. Absent: id = trace_id, tenant_id = "default",
    risk_level = 2 (1 is the highest)."""

    model_name: SoughtName
    model_version: VersionOrAlias | UnsetType = UNSET
    id: Identifier | UnsetType = UNSET
    tenant_id: Label = "default"
    entity: Annotated[str, Meta(max_length=256)] | UnsetType = UNSET
    risk_level: Annotated[int, Meta(ge=1, le=3)] = 2
    inputs: Annotated[list[Tensor], Meta(min_length=1, max_length=tensors_max)] | UnsetType = UNSET
    rows: Rows | UnsetType = UNSET
    text: Annotated[list[Text], Meta(min_length=1, max_length=text_items_max)] | UnsetType = UNSET
    input_ids: (
        Annotated[list[TokenIds], Meta(min_length=1, max_length=text_items_max)] | UnsetType
    ) = UNSET
    attention_mask: (
        Annotated[list[TokenIds], Meta(min_length=1, max_length=text_items_max)] | UnsetType
    ) = UNSET
    messages: Annotated[list[Message], Meta(min_length=1, max_length=messages_max)] | UnsetType = (
        UNSET
    )
    outputs: Annotated[list[Label], Meta(max_length=tensors_max)] | UnsetType = UNSET
    stream: bool = False
    sampling: Sampling | UnsetType = UNSET
    explain: bool = False
    parameters: Annotated[dict[Label, Scalar], Meta(max_length=parameters_max)] | UnsetType = UNSET

    def form(self) -> str:
        """Which of `FORMS` this request uses.

        Raises INVALID_REQUEST unless it is exactly one, and for an `attention_mask` without ids.
        """
        is_given = (
            self.inputs is not UNSET,
            self.rows is not UNSET,
            self.text is not UNSET,
            self.input_ids is not UNSET,
            self.messages is not UNSET,
        )
        if is_given.count(True) != 1:
            given = [name for name in FORMS if getattr(self, name) is not UNSET]
            received = ", ".join(given) or "none"
            raise MeshError(
                "INVALID_REQUEST",
                f"exactly one of {', '.join(FORMS)} is expected, received {received}",
            )
        form = FORMS[is_given.index(True)]
        if self.attention_mask is not UNSET and form != "input_ids":
            raise MeshError("INVALID_REQUEST", "attention_mask goes with input_ids only")
        return form


Variant = Literal["default", "alias", "pinned", "split", "rule", "canary", "fallback"]
Mark = Literal["truncated", "frozen", "stale", "infra_mismatch"]


class Prediction(Open, frozen=True, kw_only=True):
    """A classifier's answer for one row; probabilities sum to 1 within 1e-6."""

    label: str
    confidence_score: Annotated[float, Meta(ge=0.0, le=1.0)]
    probabilities: dict[str, Annotated[float, Meta(ge=0.0, le=1.0)]]
    action: str | UnsetType = UNSET


class Usage(Open, frozen=True, kw_only=True):
    """What the request consumed."""

    rows: int
    tokens_in: int
    tokens_out: int


class Item(Open, frozen=True, kw_only=True):
    """The status of one row when some rows failed and others did not."""

    status: Literal["ok"] | ErrorBody


class InferenceResponse(Open, frozen=True, kw_only=True):
    """The answer, with the lineage that accounts for it. Rows that failed are left out of
    `outputs` and `predictions`; `items` then has one entry for each row of the request."""

    id: str
    trace_id: TraceId
    model_name: str
    model_version: Version
    policy_version: int
    variant: Variant
    degraded: bool
    marks: list[Mark]
    outputs: list[Tensor]
    predictions: list[Prediction] | UnsetType = UNSET
    text: str | UnsetType = UNSET
    generated_ids: list[int] | UnsetType = UNSET
    logprobs: list[float] | UnsetType = UNSET
    finish_reason: str | UnsetType = UNSET
    confidence_score: float | UnsetType = UNSET
    explanations: list[dict[str, float]] | UnsetType = UNSET
    usage: Usage
    timing_us: Timing
    lineage: Lineage
    freshness_s: float | UnsetType = UNSET
    frozen: list[str] | UnsetType = UNSET
    items: list[Item] | UnsetType = UNSET


class StreamItem(Open, frozen=True, kw_only=True):
    """One step of a language model's stream."""

    index: int
    token_ids: list[int]
    text: str


class ModelRow(Open, frozen=True, kw_only=True):
    """One version of a model as the orchestrator sees it; `replicas` have it ready."""

    name: str
    version: Version
    aliases: list[str]
    task: str
    state: Literal["published", "loading", "ready", "failed"]
    digest: Digest
    contract: Digest
    replicas: int


class Models(Open, frozen=True, kw_only=True):
    """Every published version."""

    models: list[ModelRow]


class Outcome(Strict, frozen=True, kw_only=True):
    """What really happened to a prediction."""

    trace_id: TraceId
    label: Label
    event_time: str


class Outcomes(Strict, frozen=True, kw_only=True):
    """Outcomes pushed later, joined by trace id."""

    rows: Annotated[list[Outcome], Meta(max_length=rows_per_request_max)]


class OutcomesAccepted(Open, frozen=True, kw_only=True):
    """How many outcomes found their prediction."""

    accepted: int
    unknown: int
