"""The systems that the benchmark compares with."""
