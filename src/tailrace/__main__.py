"""The command `tailrace`, or `python -m tailrace`: the command line, or what to install for it."""

import sys


def main() -> None:
    """The entry point of the console script."""
    try:
        from tailrace.cli.main import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("typer", "rich"):
            raise
        sys.exit(f"tailrace: the command line needs the package {error.name}: pip install 'tailrace[cli]'")
    app()


if __name__ == "__main__":
    main()
