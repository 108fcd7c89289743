"""Speed of tailrace and its peers, side by side. `python -m benchmarks --help`."""
