"""The `mortise` and `supervisor` commands: put our packages first, then hand over to the CLI."""

import sys

from mortise.launcher import SERVE_COMMAND, WrongTree, missing_package, put_first


def main() -> None:
    """Run the command line and exit with its code."""
    missing = missing_package()
    if missing is not None:
        print(
            f"this command needs the serving packages ({missing} is not installed); install them"
            f" with\n  {SERVE_COMMAND}",
            file=sys.stderr,
        )
        raise SystemExit(1)
    try:
        put_first()
    except WrongTree as error:
        print(error, file=sys.stderr)
        raise SystemExit(1) from error
    from mortise.cli.app import run

    raise SystemExit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
