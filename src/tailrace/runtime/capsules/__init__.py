"""Failed calls of user code that are made again, from their capsules (`task.contract.capsule`).

- `rerun`: the operator with the state of the capsule, and the call.
- `currentcode`: the functions and classes of a script as its file has them today.
"""
