"""Feature views: the header that users write, requests for features, and the block that carries
them from the fabric through the orchestrator to the runtime.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from contracts.errors import ErrorBody
from contracts.inference import Datatype, Rows
from contracts.limits import feature_items_max, list_items_max, rows_per_request_max
from contracts.types import (
    UNSET,
    Digest,
    Empty,
    Name,
    Open,
    Scalar,
    Strict,
    UnsetType,
    Version,
)

Dtype = Literal["bool", "int64", "float64", "string", "timestamp"]
"""A timestamp is an instant to the microsecond, UTC inside the mesh."""


class FieldContract(Strict, frozen=True, kw_only=True):
    """K4: the contract of one request column or feature.

    `range` bounds numbers, both ends included; `values` is a closed vocabulary; `missing` says
    what a null means: "reject" refuses the row, "null" passes it on, `default` replaces it.
    `zone` names the IANA zone in which an instant without offset is read; `decimals` the digits
    after the point that are kept; `source` where the value comes from, for its owner to sign.
    """

    dtype: Dtype
    range: tuple[float, float] | UnsetType = UNSET
    values: list[str] | UnsetType = UNSET
    characters_max: Annotated[int, Meta(ge=1, le=65_536)] | UnsetType = UNSET
    missing: Literal["reject", "null", "default"] = "reject"
    default: Scalar | UnsetType = UNSET
    zone: str | UnsetType = UNSET
    decimals: Annotated[int, Meta(ge=0, le=17)] | UnsetType = UNSET
    source: str
    description: str = ""


class ViewHeader(Strict, frozen=True, kw_only=True):
    """The TOML inside a view's leading `/* mortise … */` comment. Order of `fields` is the order
    of a block's columns. `freshness_s` is the SLA: the request's event time minus the newest
    source event time used. `window_s` is the drift window's length in event time."""

    name: Name
    version: Version
    entity: str
    event_time: str
    freshness_s: Annotated[float, Meta(gt=0.0)] = 30.0
    window_s: Annotated[float, Meta(gt=0.0)] = 10.0
    owner: str
    description: str = ""
    request: dict[str, FieldContract]
    fields: dict[str, FieldContract]


class FeatureColumn(Open, frozen=True, kw_only=True):
    """One column of a block, `rows` values. `data` is little-endian `bin` of `datatype`
    (a timestamp is INT64 microseconds since 1970 UTC, a bool one byte), or for BYTES a list of
    strings. `validity` is one bit a row, least significant first, 1 = present; absent: all are."""

    datatype: Datatype
    data: memoryview | list[str | None]
    validity: memoryview | UnsetType = UNSET


class FeatureBlock(Open, frozen=True, kw_only=True):
    """The features of one request's good rows, in the order of the view's `fields`."""

    view: Digest
    rows: Annotated[int, Meta(ge=0)]
    columns: list[FeatureColumn]


class RefusedRow(Open, frozen=True, kw_only=True):
    """A row that broke the contract: its index in the request, and the error that names field,
    limit and value."""

    row: int
    error: ErrorBody


class FeatureRequest(Strict, frozen=True, kw_only=True):
    """`features`: the view's values for the given rows, as of each row's own event time."""

    view: Name
    view_version: Version | UnsetType = UNSET
    rows: Rows
    format: Literal["rows", "arrow", "block"] = "rows"


class FeatureLineage(Open, frozen=True, kw_only=True):
    """Where features come from: content digest of the sources, hash of the view's parse tree, and
    the certificate that the fast path equals the engine."""

    data: Digest
    feature_code: Digest
    certificate: Digest | UnsetType = UNSET


class FeatureResponse(Open, frozen=True, kw_only=True):
    """Good rows in request order in the asked format; bad ones in `refused`."""

    rows: list[dict[str, Scalar]] | UnsetType = UNSET
    arrow: bytes | UnsetType = UNSET
    block: FeatureBlock | UnsetType = UNSET
    lineage: FeatureLineage
    freshness_s: float | UnsetType = UNSET
    frozen: list[str]
    refused: list[RefusedRow]


class FeatureItem(msgspec.Struct, frozen=True, array_like=True):
    """One request of a micro-batch: its trace id, its rows undecoded, what remains of its
    deadline in microseconds."""

    trace_id: str
    rows: msgspec.Raw
    deadline_us: int


class FeatureBatch(Open, frozen=True, kw_only=True):
    """`features_batch` (inside the mesh): several requests of one view version."""

    view: Name
    view_version: Version
    items: Annotated[list[FeatureItem], Meta(min_length=1, max_length=feature_items_max)]


RawBlock = Annotated[msgspec.Raw, Meta(extra_json_schema={"type": "object"})]
"""An encoded FeatureBlock."""


class FeatureBatchItem(Open, frozen=True, kw_only=True):
    """One request's outcome: a block (spliced unopened), or an error when no row is good."""

    block: RawBlock | UnsetType = UNSET
    error: ErrorBody | UnsetType = UNSET
    refused: list[RefusedRow]
    freshness_s: float | UnsetType = UNSET


class FeatureBatchResponse(Open, frozen=True, kw_only=True):
    """Items in request order; received and sent are absolute monotonic microseconds."""

    items: list[FeatureBatchItem]
    lineage: FeatureLineage
    frozen: list[str]
    received_us: int
    sent_us: int


class ViewRow(Open, frozen=True, kw_only=True):
    """One view version that the fabric holds."""

    name: str
    version: str
    digest: Digest
    state: Literal["loading", "ready", "failed"]
    reason: str | UnsetType = UNSET
    entity: str
    event_time: str
    freshness_s: float
    owner: str
    request: dict[str, FieldContract]
    fields: dict[str, FieldContract]
    lineage: FeatureLineage | UnsetType = UNSET
    path: Literal["closure", "engine"] | UnsetType = UNSET


class Views(Open, frozen=True, kw_only=True):
    """Every view version that is loaded or loading."""

    views: list[ViewRow]


class LineageRequest(Strict, frozen=True, kw_only=True):
    """`lineage`: a view's sources and columns."""

    view: Name
    view_version: Version | UnsetType = UNSET


class SourceRow(Open, frozen=True, kw_only=True):
    """One file or stream behind a view; the content digest is its identity, the rest are hints."""

    source: str
    path: str
    digest: Digest
    bytes: int
    rows: int
    event_time_max: str | UnsetType = UNSET


class ViewLineage(Open, frozen=True, kw_only=True):
    """Sources with their fingerprints, and for every feature the source columns it reads."""

    view: str
    view_version: str
    lineage: FeatureLineage
    sources: list[SourceRow]
    columns: dict[str, list[str]]


assert rows_per_request_max <= list_items_max, "a column of one request fits into a list"

ViewsRequest = Empty
