"""Records in flight at a cut that overtakes them (unaligned checkpoints).

In: a cut of a task, and its channels. Out: pieces of logs for the file of the checkpoint, and their places behind a restore.

- `recording`: which records in the channels of a task belong to the checkpoint.
- `recorded_ahead`: the "continuous" way: what waits is written before a checkpoint finds it.
- `redistribution`: which subtask gets them at another parallelism, or in a changed dataflow.

How they come back in front of new records is in `subtask.returning`, since operators take part in it.
"""
