"""What a batch costs, kept between processes."""

from pathlib import Path

import pytest

from services.model_runtime.config import warm_rows
from services.model_runtime.costs import Costs

DIGEST = "sha256:" + "ab" * 32
INFRA = "sha256:" + "0" * 64


@pytest.fixture
def costs(tmp_path: Path) -> Costs:
    """The records of an empty home."""
    return Costs(tmp_path / "costs", INFRA, 1)


def test_what_was_measured_is_read_again(costs: Costs) -> None:
    """A line through both batches, by any process of the same kind."""
    costs.record(DIGEST, 0.010, 0.010 + (warm_rows - 1) * 0.002)
    again = Costs(costs.folder, INFRA, 1).recorded(DIGEST)
    assert again is not None
    assert again.batch_s == pytest.approx(0.008)
    assert again.row_s == pytest.approx(0.002)
    assert [path.name for path in costs.folder.iterdir()] == ["ab" * 32 + ".json"]


def test_another_machine_or_thread_count_measures_anew(costs: Costs) -> None:
    """A record holds for what it was measured on."""
    costs.record(DIGEST, 0.01, 0.02)
    assert Costs(costs.folder, INFRA, 2).recorded(DIGEST) is None
    assert Costs(costs.folder, "sha256:" + "1" * 64, 1).recorded(DIGEST) is None


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b'{"batch_s": "much"}'])
def test_an_unreadable_record_is_none(costs: Costs, content: bytes) -> None:
    """Then the cost is measured, and recorded again."""
    costs.folder.mkdir()
    (costs.folder / ("ab" * 32 + ".json")).write_bytes(content)
    assert costs.recorded(DIGEST) is None
    costs.record(DIGEST, 0.01, 0.01)
    assert costs.recorded(DIGEST) is not None
