"""Columns: the one place where values become columns, and columns of one type become columns of another.

A value that goes into a column is unchanged when it comes out, or it is a `Misfit`.

- `schemas`: whole batches; begin here. `named_records`: records with names. `common_schema`: one schema for two.
- `arrays`, `single_values`: values to arrays, all at once, and one by one with the reason where one does not fit. `misfit`:
  that error.
- `casts`, `required_fields`: from type to type, and nulls in required fields. `pythonlists`: back to Python.
- `kinds`, `encoding`: families of types, and columns in dictionaries and runs.
- `expressions`, `functions`: expressions of `pyarrow.compute`, and what each function is exact for; `guards`, `mixed_types`
  and `decimal_arithmetic` are for what Arrow does not do exactly.
- `joined`: columns of the results of joins.
"""
