"""Streams in columns.

- `batches`, `expressions`: functions of whole batches, and expressions. `dataframes`: frames of pandas and Polars.
- `timestamps`: the timestamps of the batches that a function returns.
- `conversion`: rows into columns and back. `schemas`, `expected`: the one schema of a stream, also where no record came.
"""
