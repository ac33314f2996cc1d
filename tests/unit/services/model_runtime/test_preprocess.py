"""Preprocessing: bytes become the arrays they mean, and a disagreement is named."""

from typing import Any

import msgspec
import numpy as np
import pytest

from contracts.errors import MeshError
from contracts.execution import Execute
from contracts.features import FeatureBlock, FeatureColumn
from contracts.inference import Tensor
from contracts.pack import ColumnEncoder, ModelContract, TensorContract
from contracts.types import UNSET
from services.model_runtime.preprocess import TensorPreprocess, ViewPreprocess, field_types

VIEW = "sha256:" + "1" * 64
VIEW_SQL = """/* mortise
name = "departure"
version = "1"
entity = "tailnum"
event_time = "at"
owner = "owner"
[request.at]
dtype = "timestamp"
source = "schedule"
[fields.carrier]
dtype = "string"
source = "request"
[fields.temp]
dtype = "float64"
source = "weather"
[fields.unused]
dtype = "int64"
source = "weather"
[fields.late]
dtype = "bool"
source = "flights"
*/
SELECT 1
"""
ENCODERS = [
    ColumnEncoder(field="carrier", kind="category", values=["AA", "UA"]),
    ColumnEncoder(field="temp", kind="standard", mean=50.0, deviation=10.0, null_flag=True),
    ColumnEncoder(field="late", kind="standard"),
]


def block(rows: list[tuple[str | None, float | None, bool]], **changed: Any) -> msgspec.Raw:
    """A block as the fabric encodes it; `changed` replaces columns by name."""

    def validity(values: list[Any]) -> Any:
        present = [value is not None for value in values]
        return UNSET if all(present) else memoryview(np.packbits(present, bitorder="little").data)

    view = changed.pop("view", VIEW)
    carriers, temps, late = ([row[i] for row in rows] for i in range(3))
    numbers = np.array([0.0 if temp is None else temp for temp in temps], "<f8")
    columns = {
        "carrier": FeatureColumn(datatype="BYTES", data=carriers, validity=validity(carriers)),
        "temp": FeatureColumn(
            datatype="FP64", data=memoryview(numbers.tobytes()), validity=validity(temps)
        ),
        "unused": FeatureColumn(datatype="INT64", data=memoryview(bytes(8 * len(rows)))),
        "late": FeatureColumn(datatype="BOOL", data=memoryview(np.array(late).tobytes())),
    } | changed
    whole = FeatureBlock(view=view, rows=len(rows), columns=list(columns.values()))
    return msgspec.Raw(msgspec.msgpack.encode(whole))


def batch(rows: list[int], **parts: Any) -> Execute:
    """A batch with these row counts."""
    return Execute(
        model_name="m",
        model_version="1",
        rows=rows,
        risk_levels=[2] * len(rows),
        deadlines_us=[1] * len(rows),
        **parts,
    )


def refusal(preprocess: Any, work: Execute) -> str:
    """The message with which the batch is refused."""
    with pytest.raises(MeshError) as caught:
        preprocess.arrays(work, sum(work.rows))
    assert caught.value.name == "INVALID_REQUEST"
    assert caught.value.message.startswith("m version 1: ")
    return caught.value.message


@pytest.fixture
def view() -> ViewPreprocess:
    """The view's preprocessing."""
    return ViewPreprocess(VIEW, VIEW_SQL, ENCODERS)


def test_the_fields_of_a_view_come_in_the_headers_order() -> None:
    """A block's columns have no names; the header's order is theirs."""
    assert field_types(VIEW_SQL) == {
        "carrier": "string", "temp": "float64", "unused": "int64", "late": "bool"
    }  # fmt: skip


@pytest.mark.parametrize("text", ["SELECT 1", "/* mortise\nname = 1 */ SELECT 1", ""])
def test_a_view_without_a_readable_header_is_an_invalid_pack(text: str) -> None:
    """Found when the model loads."""
    with pytest.raises(MeshError, match="PACK_INVALID"):
        field_types(text)


def test_an_encoder_without_its_field_is_an_invalid_pack() -> None:
    """Found when the model loads."""
    with pytest.raises(MeshError, match=r"PACK_INVALID.*no such field"):
        ViewPreprocess(VIEW, VIEW_SQL, [ColumnEncoder(field="absent", kind="standard")])


def test_blocks_of_several_requests_are_joined_in_order(view: ViewPreprocess) -> None:
    """Nulls keep their places across blocks with and without a validity map."""
    blocks = [
        block([("AA", 60.0, True), (None, None, False)]),
        block([("UA", 40.0, False)]),
        block([("XX", None, True)]),
    ]
    numbers, categories = view.arrays(batch([2, 1, 1], blocks=blocks), 4)
    assert numbers.tolist() == [[1, 1, 0], [0, 0, 1], [-1, 0, 0], [0, 1, 1]]
    assert categories.tolist() == [[1], [0], [2], [0]]


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"blocks": []}, "requests [1]"),
        ({"blocks": [msgspec.Raw(b"\x81\xa1x\x01")]}, "malformed"),
        ({"blocks": [msgspec.Raw(b"\xc1")]}, "malformed"),
        ({"blocks": [block([("AA", 1.0, True)] * 2)]}, "blocks have [2] rows"),
        ({"blocks": [block([("AA", 1.0, True)], view="sha256:" + "2" * 64)]}, "takes view"),
        (
            {
                "blocks": [
                    block([("AA", 1.0, True)], late=FeatureColumn(datatype="INT64", data=["x"]))
                ]
            },
            "malformed: Invalid enum value 'INT64' - at `$.columns[3].datatype`",
        ),
        (
            {
                "blocks": [
                    block(
                        [("AA", 1.0, True)],
                        temp=FeatureColumn(datatype="FP64", data=memoryview(bytes(16))),
                    )
                ]
            },
            "a column has not one value or null a row",
        ),
        (
            {
                "blocks": [
                    block([("AA", 1.0, True)], temp=FeatureColumn(datatype="FP64", data=["1.0"]))
                ]
            },
            "malformed: Expected `bytes`, got `array` - at `$.columns[1].data`",
        ),
        (
            {
                "blocks": [
                    block([("AA", 1.0, True)], carrier=FeatureColumn(datatype="BYTES", data=[]))
                ]
            },
            "carrier has not one string or null a row",
        ),
    ],
)
def test_a_block_that_is_not_the_views_is_refused(
    view: ViewPreprocess, parts: dict[str, Any], reason: str
) -> None:
    """What was expected and what came is in the message."""
    assert reason in refusal(view, batch([1], **parts))


def test_a_block_with_another_number_of_columns_is_refused(view: ViewPreprocess) -> None:
    """A view of another version is not guessed at."""
    extra = block([("AA", 1.0, True)], more=FeatureColumn(datatype="BYTES", data=["x"]))
    assert "Expected `array` of length 4, got 5" in refusal(view, batch([1], blocks=[extra]))


@pytest.mark.parametrize("validity", [bytes(2), bytes(3)])
def test_a_validity_map_of_another_length_is_refused(view: ViewPreprocess, validity: bytes) -> None:
    """A bit that is not there makes a value neither appear nor vanish."""
    column = FeatureColumn(
        datatype="FP64", data=memoryview(bytes(8)), validity=memoryview(validity)
    )
    wrong = block([("AA", 1.0, True)], temp=column)
    message = refusal(view, batch([1], blocks=[wrong]))
    assert "a validity map has not one bit a row" in message


def test_nulls_are_found_across_byte_borders(view: ViewPreprocess) -> None:
    """Blocks of 1, 8, 9 and 17 rows, each padded to whole bytes, with every third value null."""
    counts = [1, 8, 9, 17]
    total = sum(counts)
    temps = [None if row % 3 == 0 else float(row) for row in range(total)]
    starts = [sum(counts[:index]) for index in range(len(counts))]
    blocks = [
        block([("AA", temp, True) for temp in temps[start : start + count]])
        for start, count in zip(starts, counts, strict=True)
    ]
    numbers, _ = view.arrays(batch(counts, blocks=blocks), total)
    assert numbers[:, 2].tolist() == [float(temp is None) for temp in temps]
    np.testing.assert_allclose(
        numbers[:, 0], [0.0 if temp is None else (temp - 50) / 10 for temp in temps], rtol=1e-6
    )


TENSORS = TensorPreprocess(
    ModelContract(
        name="m",
        task="tensor",
        inputs=[TensorContract(name="x", datatype="FP32", shape=[-1, 2])],
        outputs=[TensorContract(name="y", datatype="FP32", shape=[-1, 2])],
    )
)


def tensor(**changed: Any) -> Tensor:
    """Two rows of `x`, with some fields replaced."""
    content = np.arange(4, dtype="<f4").tobytes()
    fields: dict[str, Any] = {
        "name": "x",
        "datatype": "FP32",
        "shape": [2, 2],
        "data": memoryview(content),
    }
    return Tensor(**fields | changed)


def test_tensors_are_views_into_the_frame() -> None:
    """No copy, at any alignment."""
    frame = memoryview(b"x" + np.arange(4, dtype="<f4").tobytes())[1:]
    (array,) = TENSORS.arrays(batch([1, 1], tensors=[tensor(data=frame)]), 2)
    assert array.tolist() == [[0, 1], [2, 3]]
    assert not array.flags.owndata


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        ([], "1 tensors are expected, received none"),
        ([tensor(), tensor()], "received x, x"),
        ([tensor(name="z")], "received z FP32 [2, 2]"),
        ([tensor(datatype="FP64")], "received x FP64"),
        ([tensor(shape=[4])], "received x FP32 [4]"),
        ([tensor(shape=[1, 2])], "received x FP32 [1, 2]"),
        ([tensor(data=[1.0, 2.0, 3.0, 4.0])], "as bin is expected"),
        ([tensor(data=memoryview(b"1234"))], "4 bytes do not fill [2, 2]"),
        ([tensor(data=memoryview(b"123"))], "3 bytes do not fill [2, 2]"),
    ],
)
def test_a_tensor_that_is_not_the_contracts_is_refused(tensors: list[Tensor], reason: str) -> None:
    """What was expected and what came is in the message."""
    assert reason in refusal(TENSORS, batch([1, 1], tensors=tensors))
