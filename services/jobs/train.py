"""Trains a home's champion and its distilled fallback, and stages both packs.

    python -m services.jobs.train --home examples/flights [--compare] [--result FILE]

Progress is one JSON object a line; the last one is the result. `--compare` also trains
scikit-learn's boosted trees on the same inputs. Two runs on one machine give the same digests.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from contracts.pack import ModelContract, Provenance, TensorContract, ViewReference
from services.jobs.dataset import Dataset, make_dataset
from services.jobs.fit import Fitted, fit
from services.jobs.machine import describe_machine
from services.jobs.pack_writer import Draft, write_pack
from services.jobs.progress import report, run
from services.jobs.scores import boosted_trees, historic_rates, measure
from services.jobs.training_config import ModelConfig, SmallConfig, read_config, read_small
from services.jobs.training_inputs import Inputs, code_digest, packages, read_inputs
from services.model_runtime.backends.torch_module import pin_numerics
from services.model_runtime.mapping import Array
from services.model_runtime.probabilities import softmax
from shared.clock import SYSTEM
from shared.pack_digests import sha256

threads = 1
"""Sums in another order give other digits; one thread gives one order on any number of cores."""


@dataclass(frozen=True, slots=True)
class Trained:
    """One model's pack and its scores on the report rows."""

    digest: str
    scores: dict[str, float]


def train(
    inputs: Inputs, config: ModelConfig, small: SmallConfig, models_dir: Path
) -> tuple[Dataset, dict[str, Trained]]:
    """Train both models on these inputs and stage their packs into `models_dir`."""
    pin_numerics(threads)
    code = code_digest()
    dataset = make_dataset(
        inputs.features,
        inputs.outcome,
        inputs.event_time,
        fields=inputs.fields,
        labels=config.labels,
        view=config.view,
        label=config.label,
        split=config.split,
    )
    labels = np.eye(len(config.labels), dtype=np.float32)[dataset.labels]
    champion = _fit(dataset, config, labels)
    distilled = _fit(dataset, small, softmax(champion.logits).astype(np.float32))
    trained = {
        model.name: _stage(inputs, dataset, config, model, fitted, code, models_dir)
        for model, fitted in ((config, champion), (small, distilled))
    }
    return dataset, trained


def _fit(dataset: Dataset, model: ModelConfig | SmallConfig, targets: Array) -> Fitted:
    def on_epoch(epoch: int, train_loss: float, validate_loss: float) -> None:
        report(
            "epoch",
            model=model.name,
            epoch=epoch,
            epochs=model.training.epochs,
            train_loss=round(train_loss, 6),
            validate_log_loss=round(validate_loss, 6),
        )

    return fit(dataset, model.network, model.training, targets=targets, on_epoch=on_epoch)


def _stage(
    inputs: Inputs,
    dataset: Dataset,
    config: ModelConfig,
    model: ModelConfig | SmallConfig,
    fitted: Fitted,
    code: str,
    models_dir: Path,
) -> Trained:
    positive = config.labels.index(config.label.then)
    probabilities = softmax(fitted.logits)[:, positive]
    is_positive = dataset.labels == positive
    scores = measure(is_positive[dataset.report], probabilities[dataset.report])
    validated = measure(is_positive[dataset.validate], probabilities[dataset.validate])
    draft = Draft(
        contract=ModelContract(
            name=model.name,
            task=config.task,
            inputs=[],
            outputs=[
                TensorContract(
                    name="probabilities", datatype="FP32", shape=[-1, len(config.labels)]
                )
            ],
            labels=config.labels,
            actions=config.actions,
            view=ViewReference(
                name=config.view.name,
                version=inputs.view_version,
                digest=sha256(inputs.view_sql.encode()),
            ),
            description=model.description,
        ),
        architecture=fitted.architecture,
        provenance=Provenance(
            code=code,
            seed=model.training.seed,
            data=inputs.sources,
            feature_code=inputs.feature_code,
            hyperparameters={
                **msgspec.to_builtins(model.training),
                "epoch": fitted.epoch,
                "targets": "labels" if model is config else f"probabilities of {config.name}",
            },
            packages=packages(),
            metrics={f"validate_{name}": score for name, score in validated.items()}
            | {f"report_{name}": score for name, score in scores.items()},
        ),
        tensors=fitted.tensors,
        encoders=dataset.encoders,
        view_sql=inputs.view_sql,
    )
    digest = write_pack(draft, models_dir)
    report("pack", model=model.name, digest=digest)
    return Trained(digest, scores)


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
