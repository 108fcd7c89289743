"""Records in flight at a cut that overtakes them (unaligned checkpoints).

In: a cut of a task, and its channels. Out: pieces of logs for the file of the checkpoint, and their places behind a
restore.

- `overtaken_records`: which records in the channels of a task belong to the checkpoint.
- `continuous_recording`: the "continuous" way: records that wait are written before a checkpoint finds them.
- `redistribution`: which subtask gets the records at another parallelism, or in a changed dataflow.

`subtask.returning` brings the records back in front of new ones, since operators take part in that.
"""
