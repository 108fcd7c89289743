"""What every function of `pyarrow.compute` should give, in exact Python: the references that the search over values compares
`select` with. One module for each kind of values."""
