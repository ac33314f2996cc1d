"""Certifies the views of a home and ships the certificates with it.

    python -m services.jobs.certify_views --home examples/flights

Checks every `features/*.sql` against the home's sources, compares both of its paths, and writes the
certificate into `features/certificates/`, so that a first start need not. Certificates that an
earlier text, other data or other code left there for this Python and processor are removed. One
JSON object a line; a view that is refused, or whose paths differ, fails the job with the reason.
"""

import argparse
import tempfile
from pathlib import Path

import msgspec

from contracts.errors import MeshError
from services.data_fabric.certificate import Certificate, subject, write_certificate
from services.data_fabric.engine import EngineFailed
from services.data_fabric.loading import SHIPPED, Loader
from services.data_fabric.refusal import SourceRefused, ViewRefused
from services.jobs.progress import report, run
from shared.clock import SYSTEM
from shared.home import Home


def certify_home(home: Path) -> list[Certificate]:
    """Certify every view of a home anew and ship the certificates. Raises FEATURE_INVALID."""
    patterns = {name: source.path for name, source in Home(home).config().sources.items()}
    shipped = home / SHIPPED
    found = []
    with tempfile.TemporaryDirectory(prefix="certify") as folder:
        # Beside the home's own certificates, so that nothing is taken from an earlier run.
        aside = Path(folder)
        loader = Loader(home, patterns, aside, SYSTEM, shipped=aside)
        for path in sorted((home / "features").glob("*.sql")):
            report("certify", view=path.name)
            try:
                view = loader.load(path.read_text(encoding="utf-8"))
            except (ViewRefused, SourceRefused, EngineFailed) as error:
                raise MeshError("FEATURE_INVALID", f"{path.name}: {error}") from error
            if view.closure is None:
                raise MeshError("FEATURE_INVALID", f"{path.name} has no closure: {view.reason}")
            report("certified", view=path.name, certificate=view.lineage.certificate)
        for path in sorted(aside.glob("*.json")):
            found.append(msgspec.json.decode(path.read_bytes(), type=Certificate))
    _remove_old(shipped)
    for certificate in found:
        write_certificate(shipped, certificate)
    return found


def _remove_old(shipped: Path) -> None:
    here = subject("", "", "").python
    for path in shipped.glob("*.json"):
        if msgspec.json.decode(path.read_bytes(), type=Certificate).python == here:
            path.unlink()


def main() -> None:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(description="Certify the views of a home.")
    parser.add_argument("--home", type=Path, required=True)
    arguments = parser.parse_args()
    run(lambda: report("done", certificates=len(certify_home(arguments.home))))


if __name__ == "__main__":
    main()
