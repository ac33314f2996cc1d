"""`python -m contracts.generate`: writes everything that follows from the contracts.

`contracts/schemas/` (what `describe` answers), `contracts/golden/` (one frame of each kind a
method), and the SDK's `mortise/generated.py`. With `--release` the schemas become the released
ones that later changes are checked against. A test regenerates and finds no difference.
"""

import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from contracts.description import describe, document_schemas
from contracts.golden_frames import golden_frames
from contracts.methods import SERVICES
from contracts.sdk_table import sdk_module

ROOT = Path(__file__).parents[1]
SCHEMAS = Path("contracts/schemas")
RELEASED = Path("contracts/released")


def schema_files() -> dict[str, str]:
    """File name → text: one a service, and one of the documents that users write."""
    described = {service: msgspec.to_builtins(describe(service)) for service in SERVICES}
    return {
        f"{name}.json": _json(value)
        for name, value in (described | {"documents": document_schemas()}).items()
    }


def golden_files() -> dict[str, str]:
    """File name → text: by method and kind the frame in hexadecimal, and what it says."""
    return {
        f"{service}.json": _json(
            {
                method: {kind: _readable(frame) for kind, frame in frames.items()}
                for method, frames in golden_frames(service).items()
            }
        )
        for service in SERVICES
    }


def generated() -> dict[Path, str]:
    """Path below the repository root → text, for every generated file."""
    return {
        **{SCHEMAS / name: text for name, text in schema_files().items()},
        **{Path("contracts/golden") / name: text for name, text in golden_files().items()},
        Path("mortise/generated.py"): sdk_module(),
    }


def main(arguments: list[str]) -> None:
    """Write the files; with `--release` also the released schemas."""
    files = generated()
    if "--release" in arguments:
        files |= {RELEASED / name: text for name, text in schema_files().items()}
    for path, text in files.items():
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(text)
        print(path)


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def _readable(frame: bytes) -> dict[str, Any]:
    reads = msgspec.msgpack.decode(frame, strict=False)
    return {"hex": frame.hex(), "reads": msgspec.to_builtins(reads, str_keys=True)}


if __name__ == "__main__":
    main(sys.argv[1:])
