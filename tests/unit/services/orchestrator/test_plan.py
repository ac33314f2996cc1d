"""Plans from manifests, and the freshness in a view's header."""

import pytest

from contracts.errors import MeshError
from contracts.pack import TensorContract
from services.orchestrator.plan import view_freshness_s
from tests.unit.services.orchestrator.making import VIEW_SQL, contract, plan_for


def test_the_freshness_is_the_header_s() -> None:
    """Also behind blank lines; without the key it is 30 s."""
    assert view_freshness_s("\n" + VIEW_SQL) == 60.0
    assert view_freshness_s(VIEW_SQL.replace("freshness_s = 60\n", "")) == 30.0


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 1",
        "/* mortise\nname = 1",
        "/* other */ SELECT 1",
        VIEW_SQL.replace("freshness_s = 60", "freshness_s = -1"),
        VIEW_SQL.replace("freshness_s = 60", "freshness_s = = 1"),
    ],
)
def test_a_view_without_a_valid_header_is_a_broken_pack(text: str) -> None:
    """Absent, open, foreign, out of range, no TOML."""
    with pytest.raises(MeshError) as caught:
        view_freshness_s(text)
    assert caught.value.name == "PACK_INVALID"


def test_a_tensor_without_a_fixed_size_cannot_be_served() -> None:
    """BYTES rows cannot be joined and sliced."""
    strings = contract(inputs=[TensorContract(name="x", datatype="BYTES", shape=[-1])])
    with pytest.raises(MeshError, match="PACK_INVALID"):
        plan_for(strings)


def test_the_answer_s_size_counts_labels_and_actions() -> None:
    """A classifier's row takes more than its tensor."""
    assert plan_for(contract()).answer_row_bytes == 4 + 16


def test_a_model_whose_row_fits_into_no_frame_cannot_be_served() -> None:
    """The answer to one row alone is longer than a frame."""
    huge = contract(outputs=[TensorContract(name="y", datatype="FP64", shape=[-1, 2_000_000])])
    with pytest.raises(MeshError, match="frame_bytes_max"):
        plan_for(huge)
