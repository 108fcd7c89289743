"""Sources at run time: what a source's task has of its user's readers and enumerator. The task itself is in
`task.operators.source`, and how splits are dealt out in `task.operators.splits`.

- `completions`: reports to readers that a checkpoint is complete.
- `enumerators`: the enumerator of the user, at its position.
- `lags`: the distance of readers from the end of their splits, in metrics.
- `split_readers`: the one reader of all splits of a subtask.
"""
