"""Receipts until the control plane has them: bounded, and written before the answer leaves.

Invariants: an answer whose receipt is not in the spool does not leave; a combination stands in the
same file before the first receipt that names it; no more is admitted than what has room. Makes no
file itself: `spool_files.py` does, and `shipping.py` sends what is in them.
"""

from collections.abc import Callable
from typing import Final

from contracts.errors import MeshError
from services.orchestrator.combinations import Combined
from services.orchestrator.config import segment_bytes, spool_bytes_max
from services.orchestrator.segment import HEADER_BYTES, Segment, overhead_bytes

RECEIPT, COMBINATION = b"R", b"C"
"""First byte of a record."""
receipt_fixed_bytes: Final = 1_024
"""The longest record of a receipt without its tenant, id and entity, whose characters take at most
4 bytes each: ids, digest, three hops, 20 numbers."""
kept_free_bytes = 256 * 1024
"""Of each file, for combinations (about 1.3 KB each) and the rest that no receipt fits into."""
retry_after_ms = 250


class Spool:
    """The files of this process: `sealed` ones, those that dead processes left before its own; the
    one that is written; a spare. `on_change` is called when a file is full or a spare used.
    """

    def __init__(
        self,
        on_change: Callable[[], None],
        *,
        file_bytes: int = segment_bytes,
        bytes_max: int = spool_bytes_max,
    ) -> None:
        assert file_bytes > 2 * kept_free_bytes, "a file is mostly for receipts"
        assert bytes_max >= 2 * file_bytes, "one is written while the next is made"
        self.file_bytes = file_bytes
        self.sealed: list[Segment] = []
        self.current: Segment | None = None
        self.fault: str | None = None
        """Why the last attempt to make a file failed."""
        self._bytes_max = bytes_max
        self._spare: Segment | None = None
        self._room = 0
        """Bytes for receipts in the current file and the spare."""
        self._reserved = 0
        self._named: set[str] = set()
        self._on_change = on_change

    # Files.

    @property
    def size(self) -> int:
        """What all files take on the disk."""
        return sum(segment.size for segment in self.files())

    def files(self) -> list[Segment]:
        """Every file, in the order in which they are shipped."""
        newest = [segment for segment in (self.current, self._spare) if segment is not None]
        return [*self.sealed, *newest]

    @property
    def wants_file(self) -> bool:
        """There is no spare, and room for one below the bound."""
        return self._spare is None and self.size + self.file_bytes <= self._bytes_max

    def add(self, segment: Segment) -> None:
        """A new empty file."""
        self.fault = None
        if self.current is None:
            self.current = segment
        else:
            assert self._spare is None, "one spare is enough"
            self._spare = segment
        self._measure()
        if self.wants_file:
            self._on_change()

    def adopt(self, segment: Segment) -> None:
        """A dead process's file: shipped before ours."""
        self.sealed.insert(0, segment)

    def drop_acknowledged(self) -> list[Segment]:
        """Give up the sealed files that hold nothing any more; the caller deletes them."""
        done = [segment for segment in self.sealed if segment.is_acknowledged]
        self.sealed = [segment for segment in self.sealed if not segment.is_acknowledged]
        return done

    def oldest(self) -> Segment | None:
        """The first file with records that the control plane has not got."""
        return next((file for file in self.files() if not file.is_acknowledged), None)

    def unacknowledged(self) -> int:
        """Records that the control plane has not taken."""
        return sum(segment.records - segment.acknowledged for segment in self.files())

    # Receipts.

    def reserve(self, tenant_id: str, request_id: str, entity: str) -> int:
        """Keep room for the receipt of a request that is admitted; how much, for `release`.

        Raises DISK_FULL or OVERLOADED when there is none.
        """
        size = receipt_fixed_bytes + 4 * (len(tenant_id) + len(request_id) + len(entity))
        if self._reserved + size > self._room:
            raise self._refusal()
        self._reserved += size
        return size

    def release(self, size: int) -> None:
        """The request ended; its receipt is written or there is none."""
        self._reserved -= size
        assert self._reserved >= 0, "what is released was reserved"

    @property
    def has_room(self) -> bool:
        """A request could be admitted."""
        return self._reserved + receipt_fixed_bytes <= self._room

    def _measure(self) -> None:
        """A file was added or filled."""
        files = [segment for segment in (self.current, self._spare) if segment is not None]
        self._room = sum(segment.room - kept_free_bytes for segment in files)

    def append(self, receipt: bytes, combined: Combined) -> None:
        """Write an encoded receipt, and before it its combination if this file has not got it.

        Raises DISK_FULL or OVERLOADED if it does not fit any more; nothing is written then.
        """
        self.append_record(RECEIPT + receipt, combined)

    def append_record(self, record: bytes | bytearray, combined: Combined) -> None:
        """`append` for a receipt that stands behind `RECEIPT` already."""
        current, size = self.current, len(record) + overhead_bytes
        if (
            current is None
            or size > current.size - current.end
            or combined.snapshot not in self._named
        ):
            current = self._prepare(size, combined)
        current.append(record)
        self._room -= size

    def _prepare(self, size: int, combined: Combined) -> Segment:
        """The file in which a receipt of this size may stand: with room, and the combination."""
        current, record = self.current, COMBINATION + combined.combination
        combination_bytes = len(record) + overhead_bytes
        missing = 0 if combined.snapshot in self._named else combination_bytes
        if current is None or size + missing > current.room:
            current, missing = self._next_file(), combination_bytes
            assert size + missing <= current.room, "an empty file takes any receipt"
        if missing:
            self._named.add(combined.snapshot)
            current.append(record)
            self._room -= missing
        return current

    def _next_file(self) -> Segment:
        if self._spare is None:
            raise self._refusal()
        if self.current is not None:
            self.sealed.append(self.current)
        self.current, self._spare = self._spare, None
        self._named.clear()
        self._measure()
        self._on_change()
        return self.current

    def _refusal(self) -> MeshError:
        if self.fault is not None:
            text = f"no room for the receipt: {self.fault}"
            return MeshError("DISK_FULL", text, retry_after_ms=retry_after_ms)
        if not self.wants_file and self._spare is None:
            text = (
                f"{self.unacknowledged()} receipts wait for the control plane in {self.size}"
                f" bytes, spool_bytes_max is {self._bytes_max}"
            )
        else:
            text = "the spool's next file is being made"
        return MeshError(
            "OVERLOADED", text, retry_after_ms=retry_after_ms, details={"reason": "receipts"}
        )


assert kept_free_bytes > HEADER_BYTES
