"""`input_ids` of a token model: checked against its contract, packed once, cut into parts, joined
to a batch. Pure.

Rows differ in length. They travel one after the other, and the runtime pads them to the longest of
their batch, so what a batch costs are its rows times its longest one: that is what is counted
against `tokens_max` and `tokens_split`. Billed are the ids that a caller sent and did not mask.
"""

from array import array
from collections.abc import Sequence
from itertools import chain
from sys import byteorder
from typing import NamedTuple

from contracts.errors import MeshError
from contracts.inference import InferenceRequest, Tensor
from contracts.pack import TOKEN_INPUTS
from contracts.types import UNSET
from services.orchestrator.batching import Window
from services.orchestrator.plan import ModelPlan, TokenPlan
from services.orchestrator.request import Bytes, Part, Work

_IDS, _MASK = TOKEN_INPUTS
_id_bytes = 4
_outside = 'shorten it, or allow it alone: oversize = "alone" in the batching policy of'


class Span(NamedTuple):
    """Rows `start` … `start + rows` of a request, which go together: `tokens` ids are in them, the
    longest row has `longest`. `charge`: the rows of an ordinary full batch that they stand for."""

    start: int
    rows: int
    longest: int
    tokens: int
    charge: int
    is_alone: bool


class TokenRows(NamedTuple):
    """What a request's rows come to: their lengths, `tokens` ids that its mask counts, what they
    are charged, and how they are divided."""

    lengths: list[int]
    tokens: int
    charge: int
    spans: list[Span]


def pack_tokens(body: InferenceRequest, plan: ModelPlan) -> tuple[int, int, list[Bytes]]:
    """Rows, bytes, and the data of `input_ids` INT32 and, unless every id counts,
    `attention_mask` UINT8: the rows one after the other.

    Raises INVALID_REQUEST or INPUT_TOO_LONG, naming the row, the limit and what was received.
    """
    tokens, rows = plan.tokens, body.input_ids
    assert tokens is not None, "it is a token model"
    assert rows is not UNSET, "its form is input_ids"
    for index, row in enumerate(rows):
        if not 1 <= len(row) <= tokens.row_tokens_max:
            raise _wrong_length(plan, tokens, index, len(row))
    highest = max(map(max, rows))
    if highest >= tokens.vocabulary:
        raise _invalid(
            f"{plan.name} takes ids from 0 to {tokens.vocabulary - 1}, received {highest}"
        )
    ids = array("i", chain.from_iterable(rows))
    assert ids.itemsize == _id_bytes, "a C int has 32 bits wherever this runs"
    if byteorder == "big":
        ids.byteswap()
    found: list[Bytes] = [ids.tobytes()]
    if body.attention_mask is not UNSET:
        mask = _pack_mask(body.attention_mask, rows, plan)
        if b"\x00" in mask:
            found.append(mask)
    if tokens.reserved_id >= 0:
        _check_reserved(plan, tokens, rows, is_masked=len(found) > 1)
    return len(rows), sum([len(data) for data in found]), found


def _wrong_length(plan: ModelPlan, tokens: TokenPlan, index: int, length: int) -> MeshError:
    if length == 0:
        return _invalid(f"row {index} of input_ids is empty: 1 to {tokens.row_tokens_max} ids")
    return MeshError(
        "INPUT_TOO_LONG",
        f"row {index} of input_ids has {length} ids, {plan.name} takes row_tokens_max"
        f" {tokens.row_tokens_max}: shorten it",
        details={"row_tokens_max": tokens.row_tokens_max, "received": length, "row": index},
    )


def _pack_mask(
    mask: Sequence[Sequence[int]], rows: Sequence[Sequence[int]], plan: ModelPlan
) -> bytes:
    if len(mask) != len(rows):
        raise _invalid(f"attention_mask has {len(mask)} rows, input_ids has {len(rows)}")
    for index, row in enumerate(mask):
        if len(row) != len(rows[index]):
            raise _invalid(
                f"row {index} of attention_mask has {len(row)} entries, of input_ids"
                f" {len(rows[index])}"
            )
        if max(row) > 1:
            raise _invalid(f"attention_mask holds 0 and 1, received {max(row)} in row {index}")
        if 1 not in row:
            raise _invalid(f"row {index} of attention_mask is 0 throughout: no id counts")
    return bytes(chain.from_iterable(mask))


def _check_reserved(
    plan: ModelPlan, tokens: TokenPlan, rows: Sequence[Sequence[int]], *, is_masked: bool
) -> None:
    if is_masked:
        raise _invalid(f"{plan.name} has no input attention_mask: leave out the ids marked 0")
    for index, row in enumerate(rows):
        if tokens.reserved_id in row:
            raise _invalid(
                f"row {index} of input_ids has {tokens.reserved_id}, which is the padding of"
                f" {plan.name}: leave it out"
            )


def divide_tokens(body: InferenceRequest, plan: ModelPlan, window: Window) -> TokenRows:
    """How a request that `pack_tokens` has passed is divided. Raises INPUT_TOO_LONG for a row that
    no batch may hold."""
    rows = body.input_ids
    assert rows is not UNSET, "its form is input_ids"
    lengths = list(map(len, rows))
    longest = max(lengths)
    if longest > window.tokens_max and not window.takes_oversize:
        raise MeshError(
            "INPUT_TOO_LONG",
            f"row {lengths.index(longest)} of input_ids has {longest} ids, tokens_max is"
            f" {window.tokens_max}: {_outside} {plan.name}",
            details={"tokens_max": window.tokens_max, "received": longest},
        )
    spans = cut_rows(lengths, plan.answer_row_bytes, window)
    mask = body.attention_mask
    tokens = sum(lengths) if mask is UNSET else sum(map(sum, mask))
    return TokenRows(lengths, tokens, sum([span.charge for span in spans]), spans)


def cut_rows(lengths: Sequence[int], answer_row_bytes: int, window: Window) -> list[Span]:
    """Consecutive rows as long as they fit into one batch together; a row over `tokens_split`
    stands alone."""
    rows_max = max(1, min(window.rows_max, window.bytes_max // max(1, answer_row_bytes)))
    split = min(window.tokens_split, window.tokens_max)
    spans: list[Span] = []
    start = longest = tokens = 0
    for row, length in enumerate(lengths):
        rows = row - start
        together = max(longest, length) * (rows + 1)
        if rows and (
            rows == rows_max or together > window.tokens_max or max(longest, length) > split
        ):
            spans.append(_span(start, rows, longest, tokens, window))
            start, longest, tokens = row, 0, 0
        longest = max(longest, length)
        tokens += length
    spans.append(_span(start, len(lengths) - start, longest, tokens, window))
    return spans


def _span(start: int, rows: int, longest: int, tokens: int, window: Window) -> Span:
    padded = rows * longest
    charge = max(rows, -(-padded * window.rows_max // window.tokens_max))
    return Span(start, rows, longest, tokens, charge, padded > window.tokens_split)


def token_parts(work: Work, tensors: Sequence[Bytes], given: TokenRows) -> list[Part]:
    """The parts of a request, each with its own stretch of the packed data."""
    row_bytes = work.plan.answer_row_bytes
    parts = []
    begin = 0
    for start, rows, longest, tokens, charge, is_alone in given.spans:
        end = begin + tokens
        size = max(tokens * (_id_bytes + 1), rows * row_bytes)
        data: list[Bytes] = [memoryview(tensors[0])[begin * _id_bytes : end * _id_bytes]]
        if len(tensors) > 1:
            data.append(memoryview(tensors[1])[begin:end])
        part = Part(work, start, rows, size, data)
        part.lengths = given.lengths[start : start + rows]
        part.longest, part.tokens = longest, tokens
        part.charge, part.is_alone = charge, is_alone
        parts.append(part)
        begin = end
    return parts


def join_tokens(parts: Sequence[Part]) -> tuple[list[Tensor], list[int]]:
    """The tensors of a batch, rows one after the other, and the length of each row."""
    lengths: list[int] = []
    is_masked = False
    for part in parts:
        lengths += part.lengths
        is_masked = is_masked or len(part.tensors) > 1
    shape = [sum(lengths)]
    ids = b"".join([part.tensors[0] for part in parts])
    found = [Tensor(name=_IDS, datatype="INT32", shape=shape, data=memoryview(ids))]
    if is_masked:
        mask = b"".join([_mask_of(part) for part in parts])
        found.append(Tensor(name=_MASK, datatype="UINT8", shape=shape, data=memoryview(mask)))
    return found, lengths


def _mask_of(part: Part) -> Bytes:
    return part.tensors[1] if len(part.tensors) > 1 else b"\x01" * part.tokens


def tokens_of_rows(work: Work, is_good: Sequence[bool]) -> int:
    """The ids in a request's good rows that its mask counts."""
    counts: list[int] = []
    for part in work.parts:
        mask = bytes(_mask_of(part))
        begin = 0
        for length in part.lengths:
            counts.append(mask.count(1, begin, begin + length))
            begin += length
    return sum([count for count, good in zip(counts, is_good, strict=True) if good])


def _invalid(message: str) -> MeshError:
    return MeshError("INVALID_REQUEST", message)
