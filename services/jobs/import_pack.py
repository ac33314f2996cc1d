"""Stages a pack's folder into a home's `models/`: verified, copied aside, renamed whole.

A pack that is more than weights for a network of the allow-list is also loaded and tried first.

    python -m services.jobs.import_pack FOLDER --home HOME

Progress is one JSON object a line; the last one has the pack's `digest`, or the `error`.
"""

import argparse
from pathlib import Path

from services.jobs.progress import report, run
from shared.home import Home
from shared.pack_staging import stage
from shared.packs import read_folder


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--home", type=Path, required=True)
    options = parser.parse_args()
    home = Home(options.home)
    if read_folder(options.folder).backend != "torch":
        from services.jobs.pack_content import (
            allowed_backends,
            try_pack,
        )  # torch: seconds that other packs save

        try_pack(options.folder, allowed_backends(home), lambda name: report(f"check: {name}"))
    digest, manifest = stage(options.folder, home.models_dir, report)
    report(
        "staged",
        model=manifest.contract.name,
        digest=digest,
        bytes=sum(file.bytes for file in manifest.files),
    )


if __name__ == "__main__":
    run(main)
