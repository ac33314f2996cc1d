"""Requests for a load test: the user's own, or made from the contract of model and view. Pure.

Made values are drawn from a seed: numbers uniform in the contract's range (a tensor's in −1 … 1),
words from its vocabulary, short texts of capital letters where only a length is given.
"""

import datetime
import math
import random
from collections.abc import Mapping
from typing import Any

from contracts.pack import ModelContract, TensorContract, TokenContract
from mortise.cli.failures import UsageError
from mortise.tensors import encode_tensor

BODIES = 16
"""Different requests, sent in turn: one alone would be answered from caches of the processor."""
SEED = 20130101
ELEMENTS_MAX = 1_000_000
TOKENS_MIN, TOKENS_MAX = 4, 512
"""Lengths of made rows, if the model takes such; as many short of their middle on a logarithmic
scale as long of it."""
_CHARACTERS_DEFAULT = 3
_INTEGER_RANGE, _NUMBER_RANGE = (0.0, 1.0), (-1.0, 1.0)
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def tensor_bodies(contract: ModelContract) -> list[dict[str, Any]]:
    """`inputs` of one row each. Raises UsageError for a model that takes no tensors."""
    if contract.task == "language_model" or not contract.inputs:
        raise UsageError(
            f"{contract.name} takes no tensors and no rows of a view; give its input: --text @file"
        )
    chance = random.Random(SEED)
    return [
        {"inputs": [_tensor(tensor, chance) for tensor in contract.inputs]} for _ in range(BODIES)
    ]


def token_bodies(tokens: TokenContract) -> list[dict[str, Any]]:
    """`input_ids` of one row each, of different lengths."""
    chance = random.Random(SEED)
    longest = min(TOKENS_MAX, tokens.row_tokens_max)
    shortest = min(TOKENS_MIN, longest)
    ids = [number for number in range(min(2, tokens.vocabulary)) if number != tokens.pad_id]
    low = ids[0] if ids else 0
    return [
        {
            "input_ids": [
                [
                    _id(tokens, low, chance)
                    for _ in range(round(shortest * (longest / shortest) ** chance.random()))
                ]
            ]
        }
        for _ in range(BODIES)
    ]


def _id(tokens: TokenContract, instead: int, chance: random.Random) -> int:
    """Any id but the padding's, which some models do not take."""
    chosen = chance.randrange(tokens.vocabulary)
    return instead if chosen == tokens.pad_id else chosen


def row_bodies(columns: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """`rows` of one row each, from the view's request columns as `views` tells them."""
    chance = random.Random(SEED)
    return [
        {"rows": [{name: _cell(name, field, chance) for name, field in columns.items()}]}
        for _ in range(BODIES)
    ]


def _tensor(contract: TensorContract, chance: random.Random) -> dict[str, Any]:
    shape = [1 if size < 0 else size for size in contract.shape]
    count = math.prod(shape)
    if count > ELEMENTS_MAX:
        raise UsageError(
            f"input {contract.name} has {count} elements, at most {ELEMENTS_MAX} are made up; give"
            " it: --inputs @file"
        )
    kind = contract.datatype
    if kind == "BF16":
        # The upper half of an FP32: two bytes of 0x3f80 are 1.0.
        return {"name": contract.name, "datatype": kind, "shape": shape, "data": b"\x80?" * count}
    values: list[Any]
    if kind == "BYTES":
        values = [_text(_CHARACTERS_DEFAULT, chance) for _ in range(count)]
    elif kind == "BOOL":
        values = [chance.random() < 0.5 for _ in range(count)]
    elif kind.startswith(("INT", "UINT")):
        values = [chance.randint(0, 1) for _ in range(count)]
    else:
        values = [chance.uniform(*_NUMBER_RANGE) for _ in range(count)]
    if kind in ("FP32", "BOOL", "BYTES"):
        return encode_tensor(contract.name, values) | {"shape": shape}
    return {"name": contract.name, "datatype": kind, "shape": shape, "data": values}


def _cell(name: str, field: Mapping[str, Any], chance: random.Random) -> Any:
    dtype, limits = field["dtype"], field.get("range")
    if field.get("values"):
        return chance.choice(list(field["values"]))
    if dtype == "string":
        return _text(min(_CHARACTERS_DEFAULT, field.get("characters_max", 3)), chance)
    if dtype == "bool":
        return chance.random() < 0.5
    if dtype == "timestamp":
        low, high = limits or (1.3e9, 1.4e9)
        instant = datetime.datetime.fromtimestamp(int(chance.uniform(low, high)), datetime.UTC)
        return instant.isoformat().replace("+00:00", "Z")
    if dtype.startswith(("int", "uint")):
        low, high = limits or _INTEGER_RANGE
        return chance.randint(int(low), int(high))
    if dtype.startswith("float"):
        return chance.uniform(*(limits or _NUMBER_RANGE))
    raise UsageError(f"column {name} is {dtype}, which is not made up; give it: --rows @file")


def _text(length: int, chance: random.Random) -> str:
    return "".join(chance.choices(_LETTERS, k=length))
