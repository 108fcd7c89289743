"""Everything that runs in a worker, as deterministic machines: events go in, actions come out, and nothing here waits.

Rooms, from the top floor down; each imports from those below it only:

- `worker`: the machine of a worker process. It joins a job, runs attempts, and has its part in checkpoints and restores.
- `failover`: standbys, and a replacement that does again what a lost worker did.
- `slice`: the subtasks of one worker, and whose turn it is.
- `journal`: the history of a slice, from which a replacement does its steps again.
- `subtask`: one subtask: what it reads next, its cuts, its part in a loop nest.
- `operators`: the runtime half of each operator of `graph.operators`.
- `inflight`: records in flight at an unaligned cut.
- `channels`: what waits between operators: inputs, outputs, feedback, and their logs.
- `contract`: events, actions and what a worker knows of its job.
"""
