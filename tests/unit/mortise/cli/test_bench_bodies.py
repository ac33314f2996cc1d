"""Requests made from a contract."""

import pytest

from contracts.pack import ModelContract, TensorContract, TokenContract
from mortise.cli.bench_bodies import BODIES, row_bodies, tensor_bodies, token_bodies
from mortise.cli.failures import UsageError


def contract(**changes: object) -> ModelContract:
    """A model with one input of each kind."""
    kinds = ("FP32", "FP16", "INT64", "UINT8", "BOOL", "BYTES", "BF16")
    inputs = [TensorContract(name=kind, datatype=kind, shape=[-1, 3]) for kind in kinds]  # type: ignore[arg-type]
    fields = {"name": "m", "task": "tensor", "inputs": inputs, "outputs": [], **changes}
    return ModelContract(**fields)  # type: ignore[arg-type]


def test_tensors_have_the_shape_and_datatype_of_the_contract() -> None:
    """One row of each input; the requests differ, and are the same every time."""
    bodies = tensor_bodies(contract())
    assert len(bodies) == BODIES
    assert bodies == tensor_bodies(contract())
    assert bodies[0] != bodies[1]
    for tensor in bodies[0]["inputs"]:
        assert tensor["name"] == tensor["datatype"]
        assert tensor["shape"] == [1, 3]
    sizes = {t["name"]: len(t["data"]) for t in bodies[0]["inputs"]}
    assert sizes == {
        "FP32": 12, "FP16": 3, "INT64": 3, "UINT8": 3, "BOOL": 3, "BYTES": 3, "BF16": 6,
    }  # fmt: skip


def test_ids_are_of_the_vocabulary_and_rows_of_different_lengths() -> None:
    """None is the padding's; the same every time."""
    tokens = TokenContract(vocabulary=10, row_tokens_max=40, pad_id=3)
    bodies = token_bodies(tokens)
    assert bodies == token_bodies(tokens)
    lengths = [len(row) for body in bodies for row in body["input_ids"]]
    assert len(lengths) == BODIES
    assert min(lengths) >= 4
    assert max(lengths) <= 40
    assert len(set(lengths)) > BODIES // 2
    found = {number for body in bodies for row in body["input_ids"] for number in row}
    assert found == set(range(10)) - {3}


def test_a_row_of_one_id_is_all_that_some_models_take() -> None:
    """Limits of 1 are kept."""
    bodies = token_bodies(TokenContract(vocabulary=1, row_tokens_max=1))
    assert bodies == [{"input_ids": [[0]]}] * BODIES


def test_a_model_without_tensors_asks_for_its_text() -> None:
    """What cannot be made up is asked for, with the option."""
    with pytest.raises(UsageError, match="--text @file"):
        tensor_bodies(contract(inputs=[]))


def test_a_huge_input_is_not_made_up() -> None:
    """The limit and the way around are named."""
    huge = [TensorContract(name="x", datatype="FP32", shape=[-1, 4_000, 4_000])]
    with pytest.raises(UsageError, match=r"16000000 elements, at most 1000000.*--inputs @file"):
        tensor_bodies(contract(inputs=huge))


def test_rows_keep_to_the_contract_of_the_view() -> None:
    """Ranges, vocabularies and lengths are kept."""
    columns = {
        "at": {"dtype": "timestamp", "range": (946_684_800, 946_771_200)},
        "carrier": {"dtype": "string", "characters_max": 2},
        "origin": {"dtype": "string", "values": ["EWR", "JFK"]},
        "miles": {"dtype": "int64", "range": (1, 9)},
        "share": {"dtype": "float64", "range": (0.5, 0.6)},
        "late": {"dtype": "bool"},
    }
    for body in row_bodies(columns):
        (row,) = body["rows"]
        assert row["at"].startswith("2000-01-0")
        assert row["at"].endswith("Z")
        assert len(row["carrier"]) == 2
        assert row["origin"] in ("EWR", "JFK")
        assert 1 <= row["miles"] <= 9
        assert 0.5 <= row["share"] <= 0.6
        assert isinstance(row["late"], bool)


def test_a_column_of_an_unknown_kind_is_asked_for() -> None:
    """Its name and dtype are in the message."""
    with pytest.raises(UsageError, match="column blob is binary"):
        row_bodies({"blob": {"dtype": "binary"}})
