"""The records that a slice keeps so that another worker can replay its steps from the newest checkpoint.

In: each step of a task, each cut, each message that counts. Out: entries for the other workers, and steps to be replayed.

- `history`: the entries, in order; `contract.facts` are what they hold of a step.
- `task_state`: what a task knows at a cut that no checkpoint holds, put together from its objects (`contract.cut_state`).
- `divergence`: the error of a worker that does something else than the lost one did.
"""
