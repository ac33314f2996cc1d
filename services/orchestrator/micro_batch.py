"""One call for features and what waits for the next: the parts of requests for one view version."""

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from contracts.errors import MeshError
from contracts.features import FeatureBatchItem, FeatureBatchResponse, FeatureLineage
from contracts.limits import feature_items_max
from contracts.pack import ViewReference
from contracts.types import UNSET
from services.orchestrator.config import features_bytes_max
from services.orchestrator.request import Part

if TYPE_CHECKING:
    from services.orchestrator.feature_client import FeatureClient


class FeatureAnswer(NamedTuple):
    """What the parts of one micro-batch share."""

    instance: str
    received_us: int
    sent_us: int
    lineage: FeatureLineage
    frozen: list[str]


class FeatureCall:
    """One micro-batch in flight; `open` of its parts belong to requests that have not ended."""

    def __init__(self, lane: "ViewLane", parts: list[Part], deadline_s: float) -> None:
        self.lane = lane
        self.parts = parts
        self.open = len(parts)
        self.deadline_s = deadline_s
        self.slot = 0
        self.msgid = -1

    def expire(self) -> None:
        """The fabric did not answer within its share."""
        self.lane.client.give_up(self)

    def answered(self, result: FeatureBatchResponse | None, error: MeshError | None) -> None:
        """The RPC client's callback."""
        self.lane.client.answered(self, result, error)


class ViewLane:
    """What waits for one view version."""

    def __init__(self, client: "FeatureClient", view: ViewReference) -> None:
        self.client = client
        self.view = view
        self.waiting: dict[Part, None] = {}
        self.call: FeatureCall | None = None
        self.paused_until_s = 0.0

    def take(self) -> list[Part]:
        """The next micro-batch, in order of arrival."""
        parts: list[Part] = []
        size = 0
        for part in islice(self.waiting, feature_items_max):
            size += part.bytes
            if parts and size > features_bytes_max:
                break
            parts.append(part)
        for part in parts:
            del self.waiting[part]
        return parts


def take_item(part: Part, item: FeatureBatchItem) -> MeshError | None:
    """Keep what the fabric said of a part; the error if none of it can be used for another reason
    than its rows."""
    refused = {row.row for row in item.refused}
    if len(refused) != len(item.refused) or not refused <= set(range(part.rows)):
        return MeshError("INTERNAL", "the data fabric refused rows that were not asked for")
    part.refused = item.refused
    part.freshness_s = None if item.freshness_s is UNSET else item.freshness_s
    part.good_rows = part.rows - len(refused)
    if item.block is not UNSET:
        part.block = item.block
    elif part.good_rows and item.error is not UNSET:
        return MeshError.from_body(item.error)
    elif part.good_rows:
        return MeshError("INTERNAL", "the data fabric gave neither features nor an error")
    return None
