"""What the networks of the allow-list read from a pack's configuration."""

from collections.abc import Mapping

from torch import Tensor

from contracts.types import Scalar

Configuration = Mapping[str, Scalar | list[int]]
Tensors = Mapping[str, Tensor]
Shapes = dict[str, list[int]]


def integers(configuration: Configuration, key: str) -> list[int]:
    """Positive integers; one may stand for a list of one. Raises ValueError."""
    value = configuration.get(key)
    values = value if isinstance(value, list) else [value]
    if not values or not all(type(item) is int and item > 0 for item in values):
        raise ValueError(f"configuration {key!r} is {value!r}, positive integers are expected")
    return [item for item in values if isinstance(item, int)]


def number(configuration: Configuration, key: str) -> float:
    """A number ≥ 0. Raises ValueError."""
    value = configuration.get(key)
    if not isinstance(value, int | float) or value < 0:
        raise ValueError(f"configuration {key!r} is {value!r}, a number ≥ 0 is expected")
    return float(value)
