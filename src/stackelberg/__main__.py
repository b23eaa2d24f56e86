"""The command `stackelberg`, which `python -m stackelberg` is too."""

from __future__ import annotations

import sys

from .errors import MissingPackageError


def main() -> None:
    """What the console script runs. Without the packages that the command itself needs, one sentence says so."""
    try:
        from .cli import main as run
    except MissingPackageError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    run()


if __name__ == "__main__":
    main()
