"""The command line: `tailrace run FILE.py[:function] [ARGS...]`. It needs the extra `cli`."""
