"""What the orchestrator needs of one published model version, compiled from its pack once, so that
checks on the hot path are comparisons."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import msgspec

from contracts.errors import MeshError
from contracts.features import ViewHeader
from contracts.inference import DATATYPE_BYTES, Datatype
from contracts.limits import frame_bytes_max
from contracts.pack import Action, Manifest, ModelContract, TensorContract, ViewReference
from contracts.types import UNSET
from services.orchestrator.config import answer_overhead_bytes
from shared.pack_digests import canonical, sha256

Key = tuple[str, str, str]
"""Name, version and digest of a model version."""
_status_bytes = 16
"""`{"status": "ok"}`; the few rows that fail with a longer one are in the answer's overhead."""


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """One input or output; `row_shape` is its shape without the row axis."""

    name: str
    datatype: Datatype
    row_shape: list[int]
    row_bytes: int

    @classmethod
    def of(cls, contract: TensorContract) -> "TensorPlan":
        """Raises PACK_INVALID when rows have no fixed size, so that they cannot be joined."""
        row_shape = contract.shape[1:]
        if contract.datatype == "BYTES":
            raise MeshError("PACK_INVALID", f"tensor {contract.name} is BYTES, which has no size")
        size = prod(row_shape) * DATATYPE_BYTES[contract.datatype]
        return cls(contract.name, contract.datatype, row_shape, size)


@dataclass(frozen=True, slots=True)
class TokenPlan:
    """What the rows of a token model may be. `reserved_id`: what marks padding, where no mask
    does; else −1."""

    vocabulary: int
    row_tokens_max: int
    reserved_id: int

    @classmethod
    def of(cls, contract: ModelContract) -> "TokenPlan | None":
        """None for any other model."""
        tokens = contract.tokens
        if tokens is UNSET:
            return None
        has_mask = len(contract.inputs) > 1
        return cls(tokens.vocabulary, tokens.row_tokens_max, -1 if has_mask else tokens.pad_id)


@dataclass(frozen=True, slots=True, eq=False)
class ModelPlan:
    """A model version; equal only to itself.

    `form` is the one form of `infer` that it takes: rows with a view, input_ids of a token model
    (`tokens`; its `inputs` are empty, since its rows have no fixed size), else inputs.
    `freshness_s` is the view's SLA. `actions` holds (risk level, action) pairs;
    `key` is name, version and digest. `rows_max` is what the contract allows and one frame holds.
    """

    name: str
    version: str
    digest: str
    contract: str
    task: str
    weights: str
    tokenizer: str | None
    form: str
    inputs: list[TensorPlan]
    outputs: list[TensorPlan]
    every_output: Sequence[int]
    input_row_bytes: int
    answer_row_bytes: int
    rows_max: int
    labels: frozenset[str]
    actions: frozenset[tuple[int, str]]
    view: ViewReference | None
    freshness_s: float
    key: Key
    tokens: TokenPlan | None = None

    def takes_the_same_as(self, other: "ModelPlan") -> bool:
        """Whether what this version was given can be given to the other one as it is."""
        mine = None if self.view is None else self.view.digest
        theirs = None if other.view is None else other.view.digest
        return (
            self.inputs == other.inputs
            and mine == theirs
            and self.outputs == other.outputs
            and self.tokens == other.tokens
        )


def compile_plan(
    name: str, version: str, digest: str, manifest: Manifest, view_sql: str | None
) -> ModelPlan:
    """The plan of a published version. Raises PACK_INVALID for what cannot be served."""
    contract = manifest.contract
    tokens = TokenPlan.of(contract)
    inputs = [] if tokens is not None else [TensorPlan.of(tensor) for tensor in contract.inputs]
    outputs = [TensorPlan.of(tensor) for tensor in contract.outputs]
    view = None if contract.view is UNSET else contract.view
    answer_row_bytes = _answer_row_bytes(outputs, contract.labels, contract.actions)
    return ModelPlan(
        name=name,
        version=version,
        digest=digest,
        contract=sha256(canonical(contract)),
        task=contract.task,
        weights=manifest.weights,
        tokenizer=None if manifest.tokenizer is UNSET else manifest.tokenizer,
        form=_form(contract),
        inputs=inputs,
        outputs=outputs,
        every_output=range(len(outputs)),
        input_row_bytes=sum(tensor.row_bytes for tensor in inputs),
        answer_row_bytes=answer_row_bytes,
        rows_max=min(contract.rows_max, _rows_in_a_frame(name, answer_row_bytes)),
        labels=frozenset(contract.labels),
        actions=frozenset((rule.risk_level, rule.action) for rule in contract.actions),
        view=view,
        key=(name, version, digest),
        freshness_s=float("inf") if view_sql is None else view_freshness_s(view_sql),
        tokens=tokens,
    )


def _form(contract: ModelContract) -> str:
    if contract.tokens is not UNSET:
        return "input_ids"
    return "inputs" if contract.view is UNSET else "rows"


def _answer_row_bytes(outputs: list[TensorPlan], labels: list[str], actions: list[Action]) -> int:
    """At most this much of an answer is for one row: its tensors, prediction and status."""
    texts = [*labels, *(rule.action for rule in actions)]
    prediction = sum(2 * len(text.encode()) + 16 for text in texts) + 128 if labels else 0
    return sum(tensor.row_bytes for tensor in outputs) + prediction + _status_bytes


def _rows_in_a_frame(name: str, answer_row_bytes: int) -> int:
    rows = (frame_bytes_max - answer_overhead_bytes) // answer_row_bytes
    if rows < 1:
        raise MeshError(
            "PACK_INVALID",
            f"{name}: the answer to one row may take {answer_row_bytes} bytes, frame_bytes_max is"
            f" {frame_bytes_max}",
        )
    return rows


def view_freshness_s(view_sql: str) -> float:
    """The freshness SLA in a view's header, the TOML inside its leading `/* mortise … */`.

    Raises PACK_INVALID when the text does not begin with a valid header.
    """
    opening, _, rest = view_sql.lstrip().partition("mortise")
    header, closing, _ = rest.partition("*/")
    if opening.strip() != "/*" or not closing:
        raise MeshError("PACK_INVALID", "view.sql does not begin with /* mortise … */")
    try:
        return msgspec.convert(tomllib.loads(header), ViewHeader).freshness_s
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise MeshError("PACK_INVALID", f"view.sql: {error}") from error
