"""Ids of a token model: checked, packed, cut into parts, joined to a batch."""

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import MeshError
from contracts.inference import InferenceRequest
from services.orchestrator.admission import check_input
from services.orchestrator.batching import Window
from services.orchestrator.execution import Batch
from services.orchestrator.plan import ModelPlan
from services.orchestrator.request import Work
from services.orchestrator.tokens import (
    cut_rows,
    divide_tokens,
    join_tokens,
    token_parts,
    tokens_of_rows,
)
from tests.unit.services.orchestrator.making import plan_for, token_contract, work_for

PLAN = plan_for(token_contract())
UNMASKED = plan_for(token_contract(has_mask=False, pad_id=7))
WINDOW = Window(0.01, 4, tokens_max=40, tokens_split=10)
ALONE = Window(0.01, 4, tokens_max=40, tokens_split=10, takes_oversize=True)


def request(*rows: list[int], **changes: Any) -> InferenceRequest:
    """For `wordy`."""
    return InferenceRequest(model_name="wordy", input_ids=list(rows), **changes)


def refusal(body: InferenceRequest, plan: ModelPlan = PLAN) -> MeshError:
    """Why it is refused."""

    def admit() -> None:
        check_input(body, plan)
        divide_tokens(body, plan, WINDOW)

    with pytest.raises(MeshError) as caught:
        admit()
    return caught.value


def admitted(*rows: list[int], window: Window = ALONE, **changes: Any) -> Work:
    """A request with its parts."""
    body = request(*rows, **changes)
    count, _, tensors = check_input(body, PLAN)
    work = work_for(PLAN, body)
    work.rows = count
    work.parts = token_parts(work, tensors, divide_tokens(body, PLAN, window))
    return work


def test_ids_are_packed_one_row_after_the_other() -> None:
    """INT32, little-endian; a mask of ones is as good as none."""
    rows, size, found = check_input(request([1, 2, 3], [99]), PLAN)
    assert (rows, size) == (2, 16)
    assert found == [struct.pack("<4i", 1, 2, 3, 99)]
    assert check_input(request([1, 2], attention_mask=[[1, 1]]), PLAN)[2] == [
        struct.pack("<2i", 1, 2)
    ]


def test_a_mask_travels_as_bytes() -> None:
    """Beside the ids, in their order."""
    _, size, found = check_input(request([1, 2], [3], attention_mask=[[1, 0], [1]]), PLAN)
    assert size == 3 * 4 + 3
    assert found[1] == b"\x01\x00\x01"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (request([1], []), "row 1 of input_ids is empty: 1 to 60 ids"),
        (request([5, 100]), "ids from 0 to 99, received 100"),
        (request([2**40]), "received 1099511627776"),
        (request([1, 2], attention_mask=[[1]]), "has 1 entries, of input_ids 2"),
        (request([1], attention_mask=[[1], [1]]), "attention_mask has 2 rows, input_ids has 1"),
        (request([1, 2], attention_mask=[[2, 1]]), "holds 0 and 1, received 2 in row 0"),
        (request([1, 2], attention_mask=[[0, 0]]), "row 0 of attention_mask is 0 throughout"),
    ],
)
def test_what_breaks_the_contract_is_refused(body: InferenceRequest, words: str) -> None:
    """INVALID_REQUEST names row, limit and what was received."""
    error = refusal(body)
    assert error.name == "INVALID_REQUEST"
    assert words in error.message


def test_a_row_that_the_model_cannot_hold_is_too_long() -> None:
    """At the contract's limit it is taken, one more is INPUT_TOO_LONG with both numbers."""
    check_input(request([1] * 60), PLAN)
    error = refusal(request([1], [1] * 61))
    assert error.name == "INPUT_TOO_LONG"
    assert error.details == {"row_tokens_max": 60, "received": 61, "row": 1}
    assert "shorten it" in error.message


def test_a_row_over_tokens_max_is_refused_or_alone_by_policy() -> None:
    """`oversize` decides; the refusal names limit, received and remedy."""
    divide_tokens(request([1] * 40), PLAN, WINDOW)
    error = refusal(request([1] * 41))
    assert error.name == "INPUT_TOO_LONG"
    assert error.details == {"tokens_max": 40, "received": 41}
    assert 'oversize = "alone"' in error.message
    taken = divide_tokens(request([1] * 41), PLAN, ALONE)
    assert [span.is_alone for span in taken.spans] == [True]


def test_without_a_mask_the_padding_id_is_reserved() -> None:
    """Such a model knows padding by its id, so that no caller may send it, nor mask anything."""
    check_input(request([1, 2]), UNMASKED)
    check_input(request([1, 2], attention_mask=[[1, 1]]), UNMASKED)
    assert "has 7, which is the padding" in refusal(request([1], [7]), UNMASKED).message
    masked = request([1, 2], attention_mask=[[1, 0]])
    assert "has no input attention_mask" in refusal(masked, UNMASKED).message


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=80),
    st.integers(1, 40),
    st.integers(1, 200),
    st.integers(1, 200),
)
def test_parts_cover_every_row_once_within_the_limits(
    lengths: list[int], rows_max: int, tokens_max: int, split: int
) -> None:
    """In order; rows and padded tokens at most a batch's unless it is one row; no long row with
    others; a part over the split goes alone; the charge is at least its rows."""
    window = Window(0.01, rows_max, tokens_max=tokens_max, tokens_split=split, takes_oversize=True)
    spans = cut_rows(lengths, 4, window)
    assert [row for span in spans for row in range(span.start, span.start + span.rows)] == list(
        range(len(lengths))
    )
    for span in spans:
        inside = lengths[span.start : span.start + span.rows]
        assert span.longest == max(inside)
        assert span.tokens == sum(inside)
        assert span.rows <= rows_max
        assert span.is_alone == (span.rows * span.longest > split)
        assert span.charge >= span.rows
        if span.rows > 1:
            assert span.rows * span.longest <= tokens_max
            assert span.longest <= split


def test_a_long_row_is_cut_off_from_the_short_ones_around_it() -> None:
    """Three parts, reassembled in the order of the rows."""
    work = admitted([1], [2] * 20, [3], [4])
    assert [(part.start, part.rows, part.is_alone) for part in work.parts] == [
        (0, 1, False), (1, 1, True), (2, 2, False),
    ]  # fmt: skip
    assert [bytes(part.tensors[0]) for part in work.parts] == [
        struct.pack("<i", 1), struct.pack("<20i", *[2] * 20), struct.pack("<2i", 3, 4),
    ]  # fmt: skip


def test_a_full_batch_of_tokens_is_charged_as_one_of_rows() -> None:
    """40 of 40 tokens stand for 4 of 4 rows, 41 for 5; short rows for themselves."""
    assert [span.charge for span in cut_rows([40], 4, WINDOW)] == [4]
    assert [span.charge for span in cut_rows([41], 4, ALONE)] == [5]
    assert [span.charge for span in cut_rows([1, 1, 1], 4, WINDOW)] == [3]


def test_parts_are_joined_with_the_length_of_each_row() -> None:
    """Of several requests, one of them with a mask: the others' ids all count."""
    plain, masked = admitted([1, 2], [3]), admitted([4, 5], attention_mask=[[0, 1]])
    batch = Batch(PLAN, [*plain.parts, *masked.parts], 0.0)
    body = batch.encode(0.0)
    assert body.lengths == [2, 1, 2]
    assert body.rows == [2, 1]
    ids, mask = body.tensors
    assert (ids.name, ids.datatype, ids.shape) == ("input_ids", "INT32", [5])
    assert bytes(ids.data) == struct.pack("<5i", 1, 2, 3, 4, 5)  # type: ignore[arg-type]
    assert (mask.name, mask.datatype, mask.shape) == ("attention_mask", "UINT8", [5])
    assert bytes(mask.data) == b"\x01\x01\x01\x00\x01"  # type: ignore[arg-type]
    assert (batch.tokens, batch.tokens_real, batch.charge) == (6, 5, 3)


def test_without_any_mask_none_is_sent() -> None:
    """The runtime knows from the lengths what is padding."""
    tensors, lengths = join_tokens(admitted([1, 2], [3]).parts)
    assert [tensor.name for tensor in tensors] == ["input_ids"]
    assert lengths == [2, 1]


def test_only_ids_of_good_rows_are_counted() -> None:
    """A row that failed is not billed."""
    work = admitted([1], [2] * 20, [3, 3])
    assert tokens_of_rows(work, [True, False, True]) == 3


def test_ids_that_the_mask_leaves_out_are_not_billed() -> None:
    """Padding that a caller sent himself: of a request, and of its good rows over several parts."""
    rows: list[list[int]] = [[1, 2], [3, 0], [4] * 20]
    mask = [[1, 1], [1, 0], [1] * 5 + [0] * 15]
    body = request(*rows, attention_mask=mask)
    assert divide_tokens(body, PLAN, ALONE).tokens == 8
    work = admitted(*rows, attention_mask=mask)
    assert len(work.parts) > 1
    assert tokens_of_rows(work, [True, True, True]) == 8
    assert tokens_of_rows(work, [False, True, True]) == 6
    assert tokens_of_rows(work, [True, True, False]) == 3
