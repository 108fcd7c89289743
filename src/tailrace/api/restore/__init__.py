"""What a start from a checkpoint goes by, as far as it is known before anything runs.

- `kinds`: the kind and the shape of operators, which checkpoints record.
- `compatibility`: whether a checkpoint fits a dataflow; `dry_run` is the report of it.
- `identity`: which dataflow a job has run.
- `savepoints`: savepoints that are written without a job, and state as a DataFrame.
"""
