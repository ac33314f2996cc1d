"""A model pack: its manifest, the model's contract, and where every tensor lies.

A pack is a folder `models/<hex of the digest>/` (mode 0444 files, renamed into place whole):
`manifest.json`, `weights.safetensors`, for a model with a feature view `view.sql`, and what its
backend needs besides, as an exported program's `program.json`.
"""

from typing import Annotated, Literal

from msgspec import Meta

from contracts.inference import Datatype
from contracts.limits import token_ids_max
from contracts.types import UNSET, Digest, Name, Open, Scalar, Strict, UnsetType, Version

MANIFEST_FORMAT = 1
Task = Literal["classifier", "tensor", "embedding", "language_model"]


class TensorContract(Strict, frozen=True, kw_only=True):
    """An input or output tensor; −1 in `shape` is the row axis and stands first. Inputs of a token
    model have a second one (`TokenContract`)."""

    name: str
    datatype: Datatype
    shape: list[Annotated[int, Meta(ge=-1)]]


class Action(Strict, frozen=True, kw_only=True):
    """For requests of `risk_level`: the action when the probability of `label` is at least
    `probability_min`; of several that fit, the one with the highest minimum, of equal minima that
    of the more probable label."""

    risk_level: Annotated[int, Meta(ge=1, le=3)]
    label: str
    probability_min: Annotated[float, Meta(ge=0.0, le=1.0)]
    action: str


TOKEN_INPUTS = ("input_ids", "attention_mask")


class TokenContract(Strict, frozen=True, kw_only=True):
    """What a token model's rows are: 1 to `row_tokens_max` ids in [0, `vocabulary`) each.

    Its inputs are `input_ids` INT64 or INT32 [-1, -1] and, of the same kind, `attention_mask`, 1
    where an id stands and 0 where none does; the second −1 is the longest row of a batch, to which
    the shorter ones are padded with `pad_id` on `pad_side`. Padding must not change what the model
    says of a row by more than 1e-5. A model without `attention_mask` knows padding by `pad_id`,
    which callers may then not send.
    """

    vocabulary: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    row_tokens_max: Annotated[int, Meta(ge=1, le=token_ids_max)]
    pad_id: Annotated[int, Meta(ge=0)] = 0
    pad_side: Literal["left", "right"] = "right"


class ViewReference(Strict, frozen=True, kw_only=True):
    """The feature view that the pack was trained on; `digest` is that of the pack's view.sql."""

    name: Name
    version: Version
    digest: Digest


class ModelContract(Strict, frozen=True, kw_only=True):
    """K5: what the model takes and gives. A classifier's first output are logits, of which the mesh
    takes the softmax; its `labels` are in the order of their columns, and `actions` cover every
    risk level and label (a rule with probability_min 0 each)."""

    name: Name
    task: Task
    inputs: list[TensorContract]
    outputs: list[TensorContract]
    labels: list[str] = []
    actions: list[Action] = []
    view: ViewReference | UnsetType = UNSET
    tokens: TokenContract | UnsetType = UNSET
    rows_max: Annotated[int, Meta(ge=1)] = 4096
    p99_ms: Annotated[int, Meta(ge=1)] | UnsetType = UNSET
    description: str = ""


class ColumnEncoder(Strict, frozen=True, kw_only=True):
    """How one feature becomes network inputs: "standard" is (x − mean) / deviation with a null
    replaced by the mean and, when `null_flag`, an extra 0/1 input; "category" an index into
    `values` (0 = unknown or null) for an embedding of its own."""

    field: str
    kind: Literal["standard", "category"]
    mean: float = 0.0
    deviation: Annotated[float, Meta(gt=0.0)] = 1.0
    null_flag: bool = False
    values: list[str] = []


class Architecture(Strict, frozen=True, kw_only=True):
    """A module of the allow-list and its configuration; for another backend than "torch" whatever
    that one makes of it."""

    name: Name
    configuration: dict[str, Scalar | list[int]] = {}


class PackFile(Strict, frozen=True, kw_only=True):
    """One file of the pack besides the manifest."""

    path: str
    bytes: int
    digest: Digest


class PackTensor(Strict, frozen=True, kw_only=True):
    """One tensor: `offset` and `bytes` are absolute in `file`."""

    name: str
    datatype: Datatype
    shape: list[int]
    file: str
    offset: int
    bytes: int
    digest: Digest


class Provenance(Strict, frozen=True, kw_only=True):
    """How the model came to be; enough to train it again to the same digests."""

    code: Digest
    seed: int | UnsetType = UNSET
    data: Digest | UnsetType = UNSET
    feature_code: Digest | UnsetType = UNSET
    hyperparameters: dict[str, Scalar] = {}
    packages: dict[str, str] = {}
    metrics: dict[str, float] = {}


class Manifest(Strict, frozen=True, kw_only=True):
    """`manifest.json`. The pack's digest is the Merkle root computed from this manifest and the
    digests in it (`shared/packs.py`); `weights` is the root over the tensors alone. `backend` is
    what computes it: "torch", "program", or one of the home's `[runtime] backends`."""

    format: Literal[1]
    backend: Name = "torch"
    contract: ModelContract
    architecture: Architecture
    encoders: list[ColumnEncoder] = []
    files: list[PackFile]
    tensors: list[PackTensor]
    weights: Digest
    tokenizer: Digest | UnsetType = UNSET
    provenance: Provenance


class LoadedModel(Open, frozen=True, kw_only=True):
    """A version as one runtime holds it; the times of its load in microseconds."""

    name: str
    version: str
    digest: Digest
    state: Literal["loading", "ready", "failed"]
    reason: str | UnsetType = UNSET
    bytes: int = 0
    verify_us: int = 0
    map_us: int = 0
    warm_us: int = 0
    references: int = 0


class LoadedModels(Open, frozen=True, kw_only=True):
    """What this runtime holds, and how many batches it takes at once."""

    models: list[LoadedModel]
    credits: int
