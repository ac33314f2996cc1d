"""The contract in a view's leading `/* mortise … */` comment, of a view that was accepted before.

Checks only what reading needs; a new view's header is checked by the data fabric
(`services/data_fabric/header.py`).
"""

import re
import tomllib
from pathlib import Path

import msgspec

from contracts.errors import MeshError
from contracts.features import ViewHeader
from shared.packs import read_view

COMMENT = re.compile(r"\A\s*/\*[ \t]*mortise\b(.*?)\*/", re.DOTALL)
"""Its group is the TOML."""


def read_pack_header(models_dir: Path, digest: str) -> ViewHeader:
    """The header of the view inside a staged pack. Raises PACK_INVALID."""
    match = COMMENT.match(read_view(models_dir, digest))
    if match is None:
        raise MeshError(
            "PACK_INVALID", f"{digest}: view.sql begins with no /* mortise … */ comment"
        )
    try:
        return msgspec.convert(tomllib.loads(match.group(1)), ViewHeader)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise MeshError("PACK_INVALID", f"{digest}: header of view.sql: {error}") from error
