"""The whole allow-list: the networks that our own training makes (`architectures`, whose text is
part of what their packs come from), and those that only serve."""

from collections.abc import Mapping

from contracts.pack import Architecture
from services.model_runtime.backends import architectures
from services.model_runtime.backends.architectures import Network, Tensors
from services.model_runtime.backends.encoder import Encoder

SERVED: Mapping[str, type[Encoder]] = {"encoder": Encoder}


def build(architecture: Architecture, tensors: Tensors) -> Network:
    """The network of a pack. Raises ValueError naming the architecture, key or tensor that does
    not fit."""
    kind = SERVED.get(architecture.name)
    if kind is None:
        if architecture.name not in architectures.ARCHITECTURES:
            listed = ", ".join([*architectures.ARCHITECTURES, *SERVED])
            raise ValueError(
                f"architecture {architecture.name!r} is not in the allow-list: {listed}"
            )
        return architectures.build(architecture, tensors)
    expected = kind.shapes(architecture.configuration)
    found = {name: list(tensor.shape) for name, tensor in tensors.items()}
    if expected != found:
        name = min(key for key in expected | found if expected.get(key) != found.get(key))
        raise ValueError(
            f"tensor {name}: {architecture.name} expects {expected.get(name)},"
            f" the pack has {found.get(name)}"
        )
    return kind(architecture.configuration, tensors)
