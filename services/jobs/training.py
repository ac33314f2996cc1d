"""From a training run's inputs to two packs: the champion's and its distilled fallback's.

Two runs on one machine give the same digests: seeded, deterministic kernels, one thread.
"""

from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from contracts.pack import ModelContract, Provenance, TensorContract, ViewReference
from services.jobs.dataset import Dataset, make_dataset
from services.jobs.fit import Fitted, fit
from services.jobs.pack_writer import Draft, write_pack
from services.jobs.progress import report
from services.jobs.scores import measure
from services.jobs.training_config import ModelConfig, SmallConfig
from services.jobs.training_inputs import Inputs, code_digest, packages
from services.model_runtime.backends.torch_module import pin_numerics
from services.model_runtime.mapping import Array
from services.model_runtime.probabilities import softmax
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
    dataset = make_dataset(inputs, config)
    labels = np.eye(len(config.labels), dtype=np.float32)[dataset.labels]
    champion = _fit(dataset, config, labels)
    distilled = _fit(dataset, small, softmax(champion.logits).astype(np.float32))
    trained = {}
    for model, fitted in ((config, champion), (small, distilled)):
        scores = _score(dataset, config, fitted)
        draft = Draft(
            contract=_contract(inputs, config, model),
            architecture=fitted.architecture,
            provenance=_provenance(inputs, config, model, fitted, code, scores),
            tensors=fitted.tensors,
            encoders=dataset.encoders,
            view_sql=inputs.view_sql,
        )
        digest = write_pack(draft, models_dir)
        report("pack", model=model.name, digest=digest)
        trained[model.name] = Trained(digest, scores["report"])
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


def _score(dataset: Dataset, config: ModelConfig, fitted: Fitted) -> dict[str, dict[str, float]]:
    """Scores of each part that was not trained on."""
    positive = config.labels.index(config.label.then)
    probabilities = softmax(fitted.logits)[:, positive]
    is_positive = dataset.labels == positive
    parts = {"validate": dataset.validate, "report": dataset.report}
    return {name: measure(is_positive[part], probabilities[part]) for name, part in parts.items()}


def _contract(
    inputs: Inputs, config: ModelConfig, model: ModelConfig | SmallConfig
) -> ModelContract:
    return ModelContract(
        name=model.name,
        task=config.task,
        inputs=[],
        outputs=[
            TensorContract(name="probabilities", datatype="FP32", shape=[-1, len(config.labels)])
        ],
        labels=config.labels,
        actions=config.actions,
        view=ViewReference(
            name=config.view.name,
            version=inputs.view_version,
            digest=sha256(inputs.view_sql.encode()),
        ),
        description=model.description,
    )


def _provenance(
    inputs: Inputs,
    config: ModelConfig,
    model: ModelConfig | SmallConfig,
    fitted: Fitted,
    code: str,
    scores: dict[str, dict[str, float]],
) -> Provenance:
    return Provenance(
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
        metrics={
            f"{part}_{name}": score
            for part, measured in scores.items()
            for name, score in measured.items()
        },
    )
