"""What a batch of a version costs, measured once on this infrastructure and kept in the home, so
that a further replica or a restarted one warms with single rows instead of measuring again.

A record (`.mortise/costs/<hex>.json`) holds for the infrastructure digest and the threads with
which it was made. Any process of the home may write one: it is written aside and renamed.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec

from services.model_runtime.config import warm_rows
from shared.packs import pack_path


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """A batch takes `batch_s` + rows · `row_s` seconds, where `infra` and `threads` are these."""

    batch_s: float
    row_s: float
    infra: str
    threads: int


@runtime_checkable
class Recalls(Protocol):
    """A backend that can be told what a batch costs, instead of measuring it in `warm`."""

    def recall(self, batch_s: float, row_s: float) -> None:
        """From now on `cost(rows)` is `batch_s` + rows · `row_s`."""


@dataclass(frozen=True, slots=True)
class Costs:
    """The records of one home as this process may use them."""

    folder: Path
    infra: str
    threads: int

    def recorded(self, digest: str) -> Cost | None:
        """What was measured for this pack; None where nothing was that holds here."""
        try:
            cost = msgspec.json.decode(self._path(digest).read_bytes(), type=Cost)
        except (OSError, msgspec.MsgspecError):
            return None  # no record, or not a readable one: the cost is measured
        is_ours = (cost.infra, cost.threads) == (self.infra, self.threads)
        return cost if is_ours and cost.batch_s + cost.row_s > 0 else None

    def record(self, digest: str, one_row_s: float, many_rows_s: float) -> None:
        """Keep what batches of one row and of `warm_rows` rows were measured to take."""
        row_s = max(0.0, (many_rows_s - one_row_s) / (warm_rows - 1))
        cost = Cost(batch_s=one_row_s - row_s, row_s=row_s, infra=self.infra, threads=self.threads)
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self._path(digest)
        aside = path.with_name(f".{path.stem}.{os.getpid()}")
        aside.write_bytes(msgspec.json.encode(cost))
        aside.rename(path)

    def _path(self, digest: str) -> Path:
        return self.folder / f"{pack_path(self.folder, digest).name}.json"
