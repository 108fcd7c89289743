"""Sources at run time.

- `source`: the task of a source. `splits`: how splits are dealt out to its subtasks.
- `completions`: reports to readers that a checkpoint is complete.
- `enumerators`: the enumerator of the user, at its position.
- `lags`: the distance of readers from the end of their splits, in metrics.
- `split_readers`: the one reader of all splits of a subtask.
"""
