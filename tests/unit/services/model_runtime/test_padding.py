"""Rows of unequal length are padded to the longest of their batch, which changes no answer."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from contracts.errors import MeshError
from contracts.execution import Execute
from contracts.inference import Tensor
from contracts.pack import ModelContract, TensorContract, TokenContract
from services.jobs.bench_tokens import wordy
from services.jobs.pack_writer import write_pack
from services.model_runtime.loading import Loader
from services.model_runtime.mapping import Array
from services.model_runtime.model import Model
from services.model_runtime.padding import TokenPreprocess
from shared.clock import SYSTEM
from shared.pack_cache import VerifiedCache

TOLERANCE = 1e-5
"""M14; what a sum taken in another order may differ."""


def batch(
    *rows: list[int], mask: list[int] | None = None, name: str = "fake", **changes: Any
) -> Execute:
    """One request of these rows, as the orchestrator sends it."""
    ids = np.array([one for row in rows for one in row], "<i4")
    tensors = [_tensor("input_ids", "INT32", ids)]
    if mask is not None:
        tensors.append(_tensor("attention_mask", "UINT8", np.array(mask, "|u1")))
    fields: dict[str, Any] = {
        "model_name": name, "model_version": "1", "rows": [len(rows)], "risk_levels": [2],
        "deadlines_us": [10**9], "tensors": tensors, "lengths": [len(row) for row in rows],
    }  # fmt: skip
    return Execute(**(fields | changes))


def _tensor(name: str, datatype: Any, values: Array) -> Tensor:
    data = memoryview(values.tobytes())
    return Tensor(name=name, datatype=datatype, shape=[len(values)], data=data)


def preprocess(datatype: Any = "INT64", *, has_mask: bool = True, **tokens: Any) -> TokenPreprocess:
    """Of a model with these inputs."""
    rows = TokenContract(vocabulary=100, row_tokens_max=100, **tokens)
    names = ("input_ids", "attention_mask") if has_mask else ("input_ids",)
    contract = ModelContract(
        name="fake",
        task="tensor",
        inputs=[TensorContract(name=n, datatype=datatype, shape=[-1, -1]) for n in names],
        outputs=[],
        tokens=rows,
    )
    return TokenPreprocess(contract, rows)


def test_rows_are_padded_on_the_right_with_the_packs_id() -> None:
    """To the batch's own longest row; the mask says where ids stand."""
    ids, mask = preprocess(pad_id=9).arrays(batch([1, 2, 3], [4], [5, 6]), 3)
    assert ids.tolist() == [[1, 2, 3], [4, 9, 9], [5, 6, 9]]
    assert mask.tolist() == [[1, 1, 1], [1, 0, 0], [1, 1, 0]]
    assert ids.dtype == mask.dtype == np.int64
    assert ids.flags.writeable


def test_rows_are_padded_on_the_left_where_the_pack_says_so() -> None:
    """In the datatype of the contract."""
    ids, mask = preprocess("INT32", pad_side="left").arrays(batch([1, 2, 3], [4]), 2)
    assert ids.tolist() == [[1, 2, 3], [0, 0, 4]]
    assert mask.tolist() == [[1, 1, 1], [0, 0, 1]]
    assert ids.dtype == np.int32


def test_a_callers_mask_is_kept_and_padding_masked_besides() -> None:
    """The second id of the first row does not count."""
    _, mask = preprocess().arrays(batch([1, 2, 3], [4], mask=[1, 0, 1, 1]), 2)
    assert mask.tolist() == [[1, 0, 1], [1, 0, 0]]


def test_a_model_without_a_mask_gets_ids_alone() -> None:
    """It knows padding by its id."""
    (ids,) = preprocess(has_mask=False, pad_id=7).arrays(batch([1, 2], [3]), 2)
    assert ids.tolist() == [[1, 2], [3, 7]]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"lengths": [2]}, r"2 rows have the lengths \[2\]"),
        ({"lengths": [3, 0]}, r"2 rows have the lengths \[3, 0\]"),
        ({"lengths": [2, 2]}, r"input_ids INT32 \[4\] as bin is expected, received INT32 \[3\]"),
        ({"lengths": [2, 2**64 - 1]}, "a row of 18446744073709551615 ids, row_tokens_max is 100"),
        ({"lengths": [2**63, 2**63]}, "row_tokens_max is 100; shorten it"),
        ({"lengths": [1, 101]}, "a row of 101 ids, row_tokens_max is 100; shorten it"),
        ({"lengths": []}, r"2 rows have the lengths \[\]"),
        ({"tensors": []}, "input_ids and attention_mask are expected"),
    ],
)
def test_lengths_that_do_not_fit_are_a_disagreement(changes: Any, reason: str) -> None:
    """INVALID_REQUEST names what is expected and what came."""
    with pytest.raises(MeshError, match=reason):
        preprocess().arrays(batch([1, 2], [3], **changes), 2)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """`wordy`, loaded from its pack."""
    return _load(tmp_path_factory.mktemp("models"), "right")


def _load(folder: Path, side: Any) -> Model:
    draft = wordy()
    assert draft.contract.tokens
    tokens = replace(draft.contract.tokens, pad_side=side)
    object.__setattr__(draft, "contract", replace(draft.contract, tokens=tokens))
    digest = write_pack(draft, folder)
    cache = VerifiedCache(folder, folder / "verified", SYSTEM)
    loader = Loader(models_dir=folder, cache=cache, memory_mib_max=1_024, clock=SYSTEM)
    loaded, _ = loader.load("wordy", digest, 0)
    loaded.prime()
    return loaded


def answers(model: Model, *rows: list[int], mask: list[int] | None = None) -> Array:
    """`y` of each row."""
    outcome = model.run(batch(*rows, mask=mask, name="wordy"), SYSTEM.monotonic_us())
    assert outcome.errors == {}
    return np.frombuffer(outcome.outputs[0].data, "<f4").reshape(len(rows), 2)  # type: ignore[arg-type]


def random_rows(*lengths: int) -> list[list[int]]:
    """Seeded ids."""
    random = np.random.default_rng(1)
    return [random.integers(0, 512, length).tolist() for length in lengths]


def test_padding_does_not_change_an_answer(model: Model) -> None:
    """Each row alone and in a batch with one forty times as long: within 1e-5."""
    rows = random_rows(3, 17, 1, 120, 64)
    together = answers(model, *rows)
    alone = np.concatenate([answers(model, row) for row in rows])
    assert np.abs(together - alone).max() <= TOLERANCE
    assert np.abs(together[0] - together[1]).max() > 0.01


def test_padding_on_the_left_does_not_change_an_answer(model: Model, tmp_path: Path) -> None:
    """Positions count the ids that stand before, so both sides say the same."""
    rows = random_rows(3, 40, 1)
    left = answers(_load(tmp_path, "left"), *rows)
    assert np.abs(left - answers(model, *rows)).max() <= TOLERANCE


def test_what_a_caller_masks_out_is_as_if_it_were_not_there(model: Model) -> None:
    """Padded by the caller, or not sent at all."""
    padded = answers(model, [5, 6, 7, 0, 0], mask=[1, 1, 1, 0, 0])
    assert np.abs(padded - answers(model, [5, 6, 7])).max() <= TOLERANCE


def test_an_id_outside_the_vocabulary_fails_its_row_alone(model: Model) -> None:
    """Should one get past the door: the rows beside it are answered."""
    body = batch([1, 2, 3], [512], [4], name="wordy", rows=[1, 1, 1], risk_levels=[2] * 3)
    outcome = model.run(replace(body, deadlines_us=[10**9] * 3), SYSTEM.monotonic_us())
    assert {row: error.name for row, error in outcome.errors.items()} == {1: "FORWARD_FAILED"}
    found = np.frombuffer(outcome.outputs[0].data, "<f4").reshape(3, 2)  # type: ignore[arg-type]
    assert np.abs(found[2] - answers(model, [4])[0]).max() <= TOLERANCE


def test_a_batch_of_ids_is_never_computed_on_the_loop(model: Model) -> None:
    """Its rows do not say what it costs."""
    assert not model.is_inline(1)
