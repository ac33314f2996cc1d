"""The lines to type after a start. The one to try is made from a request that the home carries,
else from nothing.
"""

import shlex
from pathlib import Path

import msgspec

FOLDER = "requests"
"""`requests/<model>.json`: the rows, or the tensors, of one request; examples have one."""
request_bytes_max = 1024 * 1024


def line_to_try(home: Path) -> str:
    """A command that a person can paste."""
    place = shlex.quote(str(home))
    for file in sorted((home / FOLDER).glob("*.json")):
        form = _form(file)
        if form:
            path = shlex.quote(f"@{file}")
            return f"mortise infer {shlex.quote(file.stem)} --{form} {path} --home {place}"
    return line_to_look(home)


def line_to_look(home: Path) -> str:
    """The command that says how the mesh is."""
    return f"mortise status --home {shlex.quote(str(home))}"


def lines_to_repair(home: Path) -> list[str]:
    """What to do about a mesh that began with less than its files ask for."""
    place = shlex.quote(str(home))
    return [
        "correct the file of what that names ([sources]: mortise.toml, read at start only), then:",
        f"mortise stop --home {place}",
        f"mortise start --detach --home {place}",
    ]


def _form(file: Path) -> str:
    """`inputs` for a list of tensors, `rows` for a list of other maps; "" for anything else."""
    try:
        items = msgspec.json.decode(
            file.read_bytes()[:request_bytes_max], type=list[dict[str, object]]
        )
    except (OSError, msgspec.MsgspecError):
        return ""
    if not items:
        return ""
    return "inputs" if all("datatype" in item for item in items) else "rows"
