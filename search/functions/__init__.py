"""References in exact Python for the functions of `pyarrow.compute`, with which the search over values compares `select`.
One module for each kind of values."""
