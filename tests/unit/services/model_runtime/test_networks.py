"""The allow-list: what is in it, and what a pack that does not fit is told."""

from typing import Any

import pytest
import torch

from contracts.pack import Architecture
from services.jobs.bench_tokens import wordy
from services.model_runtime.backends.networks import build

CONFIGURATION = dict(wordy().architecture.configuration)


def tensors(**changes: Any) -> dict[str, torch.Tensor]:
    """Those of `wordy`."""
    found = {name: torch.from_numpy(array) for name, array in wordy().tensors.items()}
    return {**found, **changes}


def refusal(name: str, configuration: Any, given: dict[str, torch.Tensor]) -> str:
    """Why it is not built."""
    with pytest.raises(ValueError, match=r".") as caught:
        build(Architecture(name=name, configuration=configuration), given)
    return str(caught.value)


def test_an_architecture_that_is_not_listed_names_those_that_are() -> None:
    """All of them, wherever they stand."""
    text = refusal("resnet", {}, {})
    assert text == ("architecture 'resnet' is not in the allow-list: mlp, tabular, sleepy, encoder")


def test_an_encoder_refuses_tensors_and_configurations_that_do_not_fit() -> None:
    """The first tensor that differs, or the key."""
    wrong = tensors(**{"head.bias": torch.zeros(3)})
    assert "tensor head.bias: encoder expects [2], the pack has [3]" in refusal(
        "encoder", CONFIGURATION, wrong
    )
    assert "'heads' is 0, a positive integer is expected" in refusal(
        "encoder", CONFIGURATION | {"heads": 0}, tensors()
    )
    assert "no multiple of 3 heads" in refusal("encoder", CONFIGURATION | {"heads": 3}, tensors())
