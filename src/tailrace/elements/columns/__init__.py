"""Columns: the one place where values become columns, and columns of one type become columns of another.

A value that goes into a column is unchanged when it comes out, or it is a `Misfit`.

- `schemas`: whole batches; begin here. `named`: records with names. `common`: one schema for two.
- `arrays`, `fitting`: values to arrays, all at once, and one by one with the reason where one does not fit. `misfit`: that
  error.
- `casts`, `required`: from type to type, and nulls in required fields. `pythonlists`: back to Python.
- `kinds`, `encoding`: families of types, and columns in dictionaries and runs.
- `expressions`, `functions`: expressions of `pyarrow.compute`, and what each function is exact for; `guards`, `together`
  and `exact` are for what Arrow does not do exactly.
- `joined`: columns of the results of joins.
"""
