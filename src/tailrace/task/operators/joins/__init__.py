"""Joins of two keyed inputs by event time.

In: batches of records with timestamps on two inputs, and watermarks. Out: pairs of records of one key, records without a
partner once the watermark has passed all that could be one, and late records.

- `interval`: pairs of records whose times differ by so much, in rows.
- `columns`: the same in columns.
- `windowed`: pairs of records in one window, in columns.
- `versions`: records with the version as of their time, in columns.
- `groups`: lists of the records of each window, and joins by sessions, in columns; `gathered`: windows that are over.
- `kept`: what those in columns have in common: a store of columns (`stores`); `joinkeys`: their keys.
- `kinds`: the runtime half of each kind.
"""
