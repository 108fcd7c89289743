"""The interface between a worker and its driver: values, without behaviour.

In: `events` (what happens to a worker), `jobspec` and `tuning` (what it knows beforehand). Out: `actions`.

- `events`, `actions`: to add something that a worker reacts to, or requires of its driver.
- `cut_state`: what an object of a task has at a cut and no checkpoint holds, declared beside its class.
- `outside`: the way of user code to the world outside of its worker.
- `clock_access`: the way of user code to the clocks and random bytes of its process.
- `functions`, `usercode`: function objects of the user, and errors of theirs with operator, subtask and record.
- `calls`, `sinkcalls`, `background`: calls of user code beside the steps: asynchronous ones, those of sinks, and threads
  that wake a task.
- `failedcall`, `capsule`, `variables`: a call that has failed, as facts, as a file, and the variables of its frames.
"""
