"""Failed calls of user code that are made again, from their capsules (`task.contract.capsule`).

In: the file of a capsule, and the script of the program as it is today. Out: the failed call, made again in this process.

- `rerun`: the operator with the state of the capsule, and the call.
- `currentcode`: the functions and classes of a script as its file has them today.
"""
