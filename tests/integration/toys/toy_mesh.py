"""A supervisor over toys: `python toy_mesh.py HOME SPEC`, SPEC as JSON (see `harness.py`)."""

import json
import sys
from pathlib import Path
from typing import Any

from shared.home import Config, Home
from supervisor.liveness import Patience
from supervisor.restart import Intensity
from supervisor.serve import say_stdout, serve
from supervisor.spec import BOOT, ChildSpec, MeshSpec
from supervisor.tree import tree

TOY = str(Path(__file__).with_name("toy.py"))


SPIN = ("-I", "-S", "-c", "raise SystemExit(3)")
"""Ends at once: nothing of ours is imported."""


def command(service: str, behaviour: str) -> tuple[str, ...]:
    """The interpreter's arguments for a toy."""
    return SPIN if behaviour == "spin" else (*BOOT, TOY, service, behaviour)


def make_spec(wish: dict[str, Any]) -> MeshSpec:
    """The specification that a test asks for."""
    children = tuple(
        ChildSpec(
            service,
            0,
            command(service, row.get("behaviour", "good")),
            has_standby=row.get("standby", False),
            overlaps=row.get("overlaps", True),
            is_forked=row.get("forked", False),
            drain_s=row.get("drain_s", 2.0),
            memory_mib_max=row.get("memory_mib_max", 0),
        )
        for service, row in wish["children"].items()
    )
    behaviour = wish.get("template", "good")
    template = ChildSpec("model_runtime", 0, (*BOOT, TOY, "template", "model_runtime", behaviour))
    return MeshSpec(
        children=children,
        template=template if any(child.is_forked for child in children) else None,
        intensity=Intensity(**wish.get("intensity", {})),
        patience=Patience(**wish.get("patience", {})),
        ready_s_max=wish.get("ready_s_max", 30.0),
    )


def main() -> int:
    """Serve until told to stop."""
    home, wish = Home(Path(sys.argv[1])), json.loads(sys.argv[2])

    def spec(config: Config) -> MeshSpec:
        return make_spec(wish)

    return serve(home, say=say_stdout, make_spec=spec, python_path=str(tree()))


if __name__ == "__main__":
    sys.exit(main())
