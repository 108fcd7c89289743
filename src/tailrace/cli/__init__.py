"""The command line: `tailrace run FILE.py[:function] [ARGS...]`."""

from tailrace.cli.main import main

__all__ = ["main"]
