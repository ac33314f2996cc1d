"""Makes a pack from `model.toml`, tries it, and stages it into a home's `models/`; or tries one.

    python -m services.jobs.pack model.toml --home HOME | --out FOLDER
    python -m services.jobs.pack FOLDER --check [--home HOME]

Progress is one JSON object a line; the last one has the pack's `digest`, or the `error`.
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import safetensors
import torch
from safetensors.torch import load as load_tensors

from contracts.errors import MeshError
from contracts.pack import Architecture, ModelContract, Provenance, TensorContract
from contracts.program import PROGRAM, PROGRAM_BACKEND
from contracts.types import UNSET
from services.jobs.export_program import DATATYPES, Exported, export, pack_arrays
from services.jobs.model_source import ModelSource, read_source
from services.jobs.pack_config import PackConfig, contracts_of, read_pack_config
from services.jobs.pack_content import Original, allowed_backends, threads, try_pack
from services.jobs.pack_writer import Draft, write_folder
from services.jobs.progress import report, run
from services.model_runtime.backends.torch_module import pin_numerics
from services.model_runtime.mapping import Array
from shared.home import Home
from shared.pack_digests import sha256
from shared.pack_rules import FILE_NAME
from shared.pack_staging import stage
from shared.packs import MANIFEST, pack_digest

Made = tuple[Draft, Original | None]


def make(file: Path) -> Made:
    """The pack that a `model.toml` describes, and what it was made from where that computes."""
    config = read_pack_config(file)
    return _from_source(file, config) if config.is_program else (_from_weights(file, config), None)


def program_draft(
    contract: ModelContract,
    exported: Exported,
    provenance: Provenance,
    class_name: str = "Program",
) -> Draft:
    """The pack of an exported program."""
    return Draft(
        contract=contract,
        architecture=Architecture(name=class_name),
        provenance=provenance,
        tensors=exported.tensors,
        backend=PROGRAM_BACKEND,
        bfloat16=exported.bfloat16,
        files={PROGRAM: msgspec.json.format(msgspec.json.encode(exported.program), indent=1)},
    )


def _from_source(file: Path, config: PackConfig) -> Made:
    assert isinstance(config.source, str), "checked with the file"
    name, function = config.source.rsplit(":", 1)
    path = file.parent / name
    report("source", source=config.source)
    pin_numerics(threads)
    source = read_source(path.resolve(), function)
    report("export", model=source.class_name)
    tokens_max = 0 if config.tokens is UNSET else config.tokens.row_tokens_max
    exported = export(source.model, source.example, config.rows_max, tokens_max)
    report("graph", form=exported.form, nodes=len(exported.program.nodes))
    contract = _contract(config, source, exported)
    code = sha256(path.read_bytes())
    draft = program_draft(contract, exported, _provenance(config, code), source.class_name)
    return draft, _original(source, exported)


def _contract(config: PackConfig, source: ModelSource, exported: Exported) -> ModelContract:
    """Inputs as they were traced, outputs as they come out; both as the file names them."""
    with torch.inference_mode():
        names, outputs = _named(exported.run(*source.example))
    if config.output_names:
        if len(config.output_names) != len(outputs):
            raise MeshError(
                "INVALID_REQUEST",
                f"output_names has {len(config.output_names)}, the model gives {len(outputs)}",
            )
        names = config.output_names
    found_inputs = [
        TensorContract(name=name, datatype=one.datatype, shape=one.shape)
        for name, one in zip(source.names, exported.program.inputs, strict=True)
    ]
    found_outputs = [
        TensorContract(name=name, datatype=DATATYPES[one.dtype], shape=[-1, *one.shape[1:]])
        for name, one in zip(names, outputs, strict=True)
    ]
    return ModelContract(
        name=config.name,
        task=config.task,
        inputs=_agreed("inputs", found_inputs, contracts_of(config.inputs)),
        outputs=_agreed("outputs", found_outputs, contracts_of(config.outputs)),
        labels=config.labels,
        actions=config.actions,
        tokens=config.tokens,
        rows_max=config.rows_max,
        p99_ms=config.p99_ms,
        description=config.description,
    )


def _agreed(
    side: str, found: list[TensorContract], written: list[TensorContract]
) -> list[TensorContract]:
    """What the file says, where it says something: other names, never other tensors."""
    if not written:
        return found
    if [(one.datatype, one.shape) for one in found] != [(o.datatype, o.shape) for o in written]:
        listed = ", ".join(f"{one.name} {one.datatype} {one.shape}" for one in found)
        raise MeshError("INVALID_REQUEST", f"[{side}] differs from the model's own: {listed}")
    return written


def _named(result: Any) -> tuple[list[str], list[torch.Tensor]]:
    """The names and tensors of what a forward returned."""
    if isinstance(result, torch.Tensor):
        return ["output"], [result]
    if isinstance(result, dict):
        return [str(name) for name in result], list(result.values())
    if isinstance(result, list | tuple):
        return [f"output_{place}" for place in range(len(result))], list(result)
    raise MeshError(
        "PACK_INVALID",
        f"the model gives {type(result).__name__}; a tensor, a sequence or a dict is expected",
    )


def _original(source: ModelSource, exported: Exported) -> Original:
    def compute(inputs: Sequence[Array]) -> list[Array]:
        with torch.inference_mode():
            _, outputs = _named(exported.run(*(torch.from_numpy(one.copy()) for one in inputs)))
        return [output.numpy() for output in outputs]

    return Original([one.numpy() for one in source.example], compute)


def _from_weights(file: Path, config: PackConfig) -> Draft:
    """Another architecture: its tensors and files as they lie beside the configuration."""
    arrays: dict[str, Array] = {}
    bits: frozenset[str] = frozenset()
    code = sha256(file.read_bytes())
    try:
        if config.weights is not UNSET:
            content = (file.parent / config.weights).read_bytes()
            code = sha256(content)
            arrays, bits = pack_arrays(load_tensors(content))
        files = {Path(name).name: (file.parent / name).read_bytes() for name in config.files}
    except (OSError, safetensors.SafetensorError) as error:
        raise MeshError("INVALID_REQUEST", f"{file.name}: {error}") from error
    for name in files:
        if not FILE_NAME.match(name) or name == MANIFEST:
            raise MeshError("INVALID_REQUEST", f"{file.name}: file {name!r} is no plain name")
    return Draft(
        contract=ModelContract(
            name=config.name,
            task=config.task,
            inputs=contracts_of(config.inputs),
            outputs=contracts_of(config.outputs),
            labels=config.labels,
            actions=config.actions,
            tokens=config.tokens,
            rows_max=config.rows_max,
            p99_ms=config.p99_ms,
            description=config.description,
        ),
        architecture=Architecture(name=config.architecture, configuration=config.configuration),
        provenance=_provenance(config, code),
        tensors=arrays,
        backend="torch" if config.backend is UNSET else config.backend,
        bfloat16=bits,
        files=files,
    )


def _provenance(config: PackConfig, code: str) -> Provenance:
    return Provenance(
        code=code,
        hyperparameters=config.hyperparameters,
        packages={"torch": str(torch.__version__)},
    )


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("--home", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    home = None if options.home is None else Home(options.home)
    backends = [] if home is None else allowed_backends(home)
    if options.check:
        manifest = try_pack(options.source, backends, _on_check)
        _finish("checked", manifest, None)
        return
    draft, original = make(options.source)
    with tempfile.TemporaryDirectory(prefix="pack") as folder:
        made = Path(folder) / "pack"
        made.mkdir()
        write_folder(draft, made)
        manifest = try_pack(made, backends, _on_check, original)
        if home is not None and options.out is None:
            stage(made, home.models_dir, report)
            _finish("staged", manifest, None)
        else:
            target = options.out or Path(draft.contract.name)
            if target.exists():
                raise MeshError("INVALID_REQUEST", f"--out {target}: it exists; name a new folder")
            _copy(made, target)
            _finish("packed", manifest, target)


def _copy(made: Path, target: Path) -> None:
    target.mkdir(parents=True)
    for file in sorted(made.iterdir(), key=lambda file: file.name == MANIFEST):
        (target / file.name).write_bytes(file.read_bytes())


def _finish(step: str, manifest: Any, folder: Path | None) -> None:
    report(
        step,
        model=manifest.contract.name,
        backend=manifest.backend,
        digest=pack_digest(manifest),
        bytes=sum(file.bytes for file in manifest.files),
        **({} if folder is None else {"folder": str(folder)}),
    )


def _on_check(name: str) -> None:
    report(f"check: {name}")


if __name__ == "__main__":
    run(main)
