"""The real mesh of a home with restart bounds of a measurement: `python -m benchmarks.fire_mesh
BOUNDS HOME`, BOUNDS being fields of `supervisor.restart.Intensity` as JSON."""

import json
import sys
from dataclasses import replace
from pathlib import Path

from shared.home import Config, Home
from supervisor.restart import Intensity
from supervisor.serve import say_stdout, serve
from supervisor.spec import MeshSpec, mesh_of


def main() -> int:
    """Serve until told to stop."""
    bounds, home = json.loads(sys.argv[1]), Home(Path(sys.argv[2]))

    def spec(config: Config) -> MeshSpec:
        return replace(mesh_of(config), intensity=Intensity(**bounds))

    return serve(home, say=say_stdout, make_spec=spec)


if __name__ == "__main__":
    sys.exit(main())
