"""Sinks and sources of lake tables: Delta by `deltalake`, Iceberg by `pyiceberg`.

A table is a set of Parquet files and a log that lists them. Workers write the files, which no reader of the table looks at
until they are listed. One worker, the *committer*, lists those of a checkpoint in one commit, together with a mark for each
subtask (`connectors.transactional`): so each file is listed once, whoever publishes it how often.

- `datafiles`: the files of a transaction, with what a commit needs of them, and their writers.
- `statistics`: the statistics of a file's columns, from its footer.
- `changes`: upserts and deletes on their way to a merge.
- `outputs`: the transactions that a table does not have yet, by their marks.
- `lakesink`: the base of the sinks. `versions`: what the sources have in common.
- `deltatable`, `deltasink`, `deltasource`: Delta.
- `icebergtable`, `icebergsink`, `icebergsource`: Iceberg.
- `types`: the types of columns in tables.
- `opening`: the source of a table that a user names.
"""
