"""Sources at run time: what a source's task has of its user's readers and enumerator. The task itself is in
`task.operators.source`, and how splits are dealt out in `task.operators.splits`.

- `enumerators`: the enumerator of the user, at its position.
- `split_readers`: the one reader of all splits of a subtask.
"""
