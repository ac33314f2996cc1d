"""What is refused at the door, and how a request is divided."""

import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from contracts.errors import MeshError
from contracts.inference import InferenceRequest, Message, Sampling, Tensor
from contracts.pack import TensorContract
from services.orchestrator.admission import (
    check_identity,
    check_input,
    divide,
    wanted_outputs,
)
from services.orchestrator.batching import Window
from services.orchestrator.numbers import pack_numbers
from services.orchestrator.request import Part
from services.orchestrator.rows import count_rows, divide_rows
from shared.access import Peer
from tests.unit.services.orchestrator.making import (
    classifier,
    contract,
    floats,
    plan_for,
    request,
    rows_request,
    work_for,
)

PLAN = plan_for()
WINDOW = Window(0.01, 32)


def peer(*tenants: str, risk_level_min: int = 1) -> Peer:
    """A client with these rights."""
    return Peer(1001, 1001, 1, frozenset({"client"}), frozenset(tenants), risk_level_min)


def given_input(body: InferenceRequest, plan: Any = PLAN) -> tuple[int, int, list[Any]]:
    """The request's rows, bytes and tensors, checked."""
    return check_input(body, plan)


def divided(body: InferenceRequest, plan: Any, window: Window) -> list[Part]:
    """Its parts."""
    rows, size, tensors = given_input(body, plan)
    work = work_for(plan, body)
    work.rows, work.bytes = rows, size
    return divide(work, tensors, lambda _model: window)


def refusal(body: InferenceRequest, plan: Any = PLAN) -> str:
    """The message with which the input is refused."""
    with pytest.raises(MeshError) as caught:
        given_input(body, plan)
    assert caught.value.name == "INVALID_REQUEST"
    return caught.value.message


def tensor(**changes: Any) -> Tensor:
    """The input `x` of one row."""
    fields: dict[str, Any] = {
        "name": "x",
        "datatype": "FP32",
        "shape": [1, 2],
        "data": memoryview(floats(1, 2)),
    }
    return Tensor(**(fields | changes))


def test_a_peer_acts_only_for_its_tenants_and_claims_only_its_risk() -> None:
    """`[access]` bounds both; the star is every tenant."""
    check_identity(request(tenant_id="a", risk_level=2), peer("a", risk_level_min=2))
    check_identity(request(tenant_id="b", risk_level=1), peer("*"))
    for body in (request(tenant_id="b"), request(tenant_id="a", risk_level=1)):
        with pytest.raises(MeshError) as caught:
            check_identity(body, peer("a", risk_level_min=2))
        assert caught.value.name == "PERMISSION_DENIED"
        assert "1001" in caught.value.message


def test_exactly_one_form_and_no_explanations_yet() -> None:
    """None, two, or `explain` is refused with its reason."""
    for body, word in (
        (InferenceRequest(model_name="tiny"), "none"),
        (request(text=["a"]), "inputs, text"),
        (request(explain=True), "explain"),
    ):
        assert word in refusal(body)


@pytest.mark.parametrize(
    ("form", "value"),
    [
        ("text", ["a"]),
        ("input_ids", [[1]]),
        ("messages", [Message(role="user", content="a")]),
        ("rows", Raw(b"\x91\x80")),
    ],
)
def test_a_form_that_the_model_does_not_take_is_refused(form: str, value: Any) -> None:
    """`tiny` takes inputs; `delay` takes rows."""
    assert refusal(InferenceRequest(model_name="tiny", **{form: value})) == (
        f"tiny takes inputs, received {form}"
    )
    assert "delay takes rows, received inputs" in refusal(request(), plan_for(classifier()))
    assert "sampling" in refusal(request(sampling=Sampling()))


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"name": "z"}, "input x is missing, received z"),
        ({"datatype": "FP64"}, "input x is FP32 [1, 2], received FP64 [1, 2]"),
        ({"shape": [1, 3]}, "received FP32 [1, 3]"),
        ({"shape": [2]}, "received FP32 [2]"),
        ({"shape": []}, "no rows"),
        ({"shape": [0, 2], "data": memoryview(b"")}, "no rows"),
        ({"data": memoryview(b"1234567")}, "takes 8 bytes, received 7"),
        ({"data": memoryview(b"123456789")}, "takes 8 bytes, received 9"),
        ({"data": [1.0]}, "takes 2 numbers, received 1"),
        ({"data": [1.0, "a"]}, "'a' is not a number of FP32"),
        ({"data": [1.0, True]}, "'True' is not a number of FP32"),
        ({"data": [1.0, 1e39]}, "outside FP32"),
    ],
)
def test_a_tensor_that_breaks_the_contract_is_refused(changes: dict[str, Any], word: str) -> None:
    """Name, datatype, shape, byte length and each number, with what was received."""
    assert word in refusal(request(inputs=[tensor(**changes)]))


def test_inputs_are_matched_by_name_and_must_agree_on_the_rows() -> None:
    """Order does not matter; a missing, a surplus or a shorter one does."""
    two = contract(
        inputs=[
            TensorContract(name="a", datatype="FP32", shape=[-1, 2]),
            TensorContract(name="b", datatype="UINT8", shape=[-1]),
        ]
    )
    plan = plan_for(two)
    a = tensor(name="a", shape=[2, 2], data=memoryview(floats(0, 1, 2, 3)))
    b = tensor(name="b", datatype="UINT8", shape=[2], data=[7, 8])
    rows, size, tensors = given_input(request(inputs=[b, a]), plan)
    assert (rows, size, bytes(tensors[1])) == (2, 18, b"\x07\x08")
    assert "takes 2 inputs, received 1" in refusal(request(inputs=[a]), plan)
    short = tensor(name="b", datatype="UINT8", shape=[1], data=[7])
    assert "input b is UINT8 [2]" in refusal(request(inputs=[a, short]), plan)


def test_rows_over_the_model_or_the_frame_are_refused() -> None:
    """At the limit of rows, one above it; an answer that no frame could carry."""
    plan = plan_for(contract(rows_max=4))
    assert given_input(request(4), plan)[0] == 4
    assert "takes 4 rows, received 5" in refusal(request(5), plan)
    wide = contract(outputs=[TensorContract(name="y", datatype="FP32", shape=[-1, 1_000_000])])
    assert "takes 3 rows, received 4" in refusal(request(4), plan_for(wide))


def test_unknown_outputs_are_refused_and_known_ones_selected() -> None:
    """`outputs` names a subset."""
    names = [TensorContract(name=name, datatype="FP32", shape=[-1, 1]) for name in "uv"]
    plan = plan_for(contract(outputs=names))
    assert list(plan.every_output) == [0, 1]
    assert list(wanted_outputs(request(outputs=["v"]), plan)) == [1]
    with pytest.raises(MeshError, match="received w"):
        wanted_outputs(request(outputs=["w"]), plan)


@given(st.integers(1, 200), st.integers(1, 40))
def test_parts_joined_are_the_request_again(rows: int, rows_max: int) -> None:
    """Tensors and raw rows are divided without loss, each part within the window."""
    window = Window(0.01, rows_max)
    body = request(rows)
    parts = divided(body, PLAN, window)
    assert all(part.rows <= rows_max for part in parts)
    assert b"".join(part.tensors[0] for part in parts) == floats(*range(2 * rows))
    plan = plan_for(classifier())
    raw = rows_request(rows)
    parts = divided(raw, plan, window)
    decoded = [
        row
        for part in parts
        for row in msgspec.msgpack.decode(bytes(memoryview(part.raw_rows)))  # type: ignore[arg-type]
    ]
    assert decoded == [{"hour": row} for row in range(rows)]
    assert [part.start for part in parts] == list(range(0, rows, rows_max))


@pytest.mark.parametrize("count", [1, 15, 16, 65_535 // 16, 4_096])
def test_rows_are_counted_from_the_header(count: int) -> None:
    """fixarray, array16; whatever the rows are."""
    assert count_rows(Raw(msgspec.msgpack.encode([{}] * count))) == count


@pytest.mark.parametrize(
    "raw", [b"\x90", b"\x80", b"\xc0", b"\xdc\x10\x01", b"\xdd\xff\xff\xff\xff", b"\xa1a"]
)
def test_rows_that_are_no_list_or_too_many_are_refused(raw: bytes) -> None:
    """Zero, 4,097, four billion announced, or no array at all."""
    with pytest.raises(MeshError, match="rows"):
        count_rows(Raw(raw))


def test_rows_are_divided_unopened() -> None:
    """What is in a row is not looked at."""
    raw = Raw(b"\x93\x01\xa1a\x80")
    first, second = divide_rows(raw, [(0, 2), (2, 1)])
    assert (bytes(memoryview(first)), bytes(memoryview(second))) == (b"\x92\x01\xa1a", b"\x91\x80")


@pytest.mark.parametrize(
    ("datatype", "numbers", "packed"),
    [
        ("BOOL", [True, False], b"\x01\x00"),
        ("INT8", [-128, 127], b"\x80\x7f"),
        ("UINT64", [2**64 - 1], b"\xff" * 8),
        ("FP16", [1.5], b"\x00\x3e"),
        ("FP64", [1], struct.pack("<d", 1)),
        ("BF16", [1.0, float("inf")], b"\x80\x3f\x80\x7f"),
    ],
)
def test_numbers_become_little_endian_bytes(
    datatype: str, numbers: list[Any], packed: bytes
) -> None:
    """Every kind of datatype."""
    assert pack_numbers(numbers, datatype) == packed


@pytest.mark.parametrize(
    ("datatype", "number"),
    [("INT8", 128), ("UINT8", -1), ("INT32", 1.0), ("BOOL", 1), ("FP16", 70_000.0), ("BF16", 1e39)],
)
def test_a_number_that_the_datatype_cannot_hold_is_refused(datatype: str, number: Any) -> None:
    """Nothing is wrapped, rounded to an integer, or read as a boolean."""
    with pytest.raises(ValueError, match=datatype):
        pack_numbers([number], datatype)


LARGEST = 2.0**127


@given(st.floats(-LARGEST, LARGEST, width=32))
def test_bf16_is_rounded_to_nearest_even(number: float) -> None:
    """No other 16-bit value is nearer, and a tie goes to the even one."""
    (half,) = struct.unpack("<H", pack_numbers([number], "BF16"))

    def value(bits: int) -> float:
        return float(struct.unpack("<f", struct.pack("<I", (bits & 0xFFFF) << 16))[0])

    distance = abs(value(half) - number)
    for other in (half - 1, half + 1):
        if 0 <= other <= 0xFFFF and (other & 0x7F80) != 0x7F80 and (other ^ half) < 0x8000:
            further = abs(value(other) - number)
            assert distance < further or (distance == further and half % 2 == 0)


def test_a_nan_stays_a_nan_in_bf16() -> None:
    """Cutting the lower half must not make it infinite."""
    signalling = struct.unpack("<f", struct.pack("<I", 0x7F80_0001))[0]
    (half,) = struct.unpack("<H", pack_numbers([signalling], "BF16"))
    assert half & 0x7F80 == 0x7F80
    assert half & 0x007F


def test_absent_outputs_mean_all() -> None:
    """The default."""
    assert request().outputs is UNSET
