"""Trains a home's champion and its distilled fallback, and stages both packs.

    python -m services.jobs.train --home examples/flights [--compare] [--result FILE]

Progress is one JSON object a line; the last one is the result. `--compare` also trains
scikit-learn's boosted trees on the same inputs.
"""

import argparse
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from services.jobs.dataset import Dataset
from services.jobs.machine import describe_machine
from services.jobs.progress import report, run
from services.jobs.scores import boosted_trees, historic_rates, measure
from services.jobs.training import train
from services.jobs.training_config import ModelConfig, read_config, read_small
from services.jobs.training_inputs import Inputs, packages, read_inputs
from shared.clock import SYSTEM


def references(
    inputs: Inputs, dataset: Dataset, config: ModelConfig, *, compare: bool
) -> dict[str, dict[str, float]]:
    """Scores of what the models are held against, on the same report rows."""
    is_positive = dataset.labels == config.labels.index(config.label.then)
    known = inputs.outcome.is_valid()
    keys = [
        np.array(inputs.features[name].filter(known).to_pylist())
        for name in ("origin", "dest", "hour_local")
    ]
    scores = {"route_and_hour_rate": historic_rates(keys, is_positive, dataset.train)}
    if compare:
        trees = boosted_trees(dataset, is_positive, config.training.seed)
        scores["hist_gradient_boosting"] = trees
    return {
        name: measure(is_positive[dataset.report], score[dataset.report])
        for name, score in scores.items()
    }


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--config", type=Path, help="default: HOME/model.toml")
    parser.add_argument("--small", type=Path, help="default: HOME/model_small.toml")
    parser.add_argument("--models", type=Path, help="where packs go; default: HOME/models")
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--result", type=Path, help="also write the result here")
    options = parser.parse_args()
    started_s = SYSTEM.monotonic()
    config = read_config(options.config or options.home / "model.toml")
    small = read_small(options.small or options.home / "model_small.toml")
    inputs = read_inputs(options.home, config)
    features_s = SYSTEM.monotonic() - started_s
    report("features", rows=len(inputs.outcome), seconds=round(features_s, 1))
    dataset, trained = train(inputs, config, small, options.models or options.home / "models")
    trained_s = SYSTEM.monotonic() - started_s
    result: dict[str, Any] = {
        "what": "training of the flights models, scores on the rows of the report period",
        "command": f"python -m services.jobs.train --home {options.home}"
        + (" --compare" if options.compare else ""),
        "machine": describe_machine(),
        "packages": packages(),
        "rows": {
            "train": int(dataset.train.sum()),
            "validate": int(dataset.validate.sum()),
            "report": int(dataset.report.sum()),
            "excluded_without_label": dataset.excluded,
        },
        "seconds": {"features": round(features_s, 1), "all": round(trained_s, 1)},
        "digests": {name: model.digest for name, model in trained.items()},
        "scores_on_report_rows": {
            **{name: model.scores for name, model in trained.items()},
            **references(inputs, dataset, config, compare=options.compare),
        },
    }
    if options.result:
        encoded = msgspec.json.format(msgspec.json.encode(result), indent=1)
        options.result.write_bytes(encoded + b"\n")
    report("result", **result)


if __name__ == "__main__":
    run(main)
