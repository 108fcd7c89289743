"""`python -m tailrace`: the command line."""

from tailrace.cli import main

main()
