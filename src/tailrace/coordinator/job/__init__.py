"""The life of a job, as rules: `coordinator.course` moves the job by them.

- `lifecycle`: the states of a job, and every legal step between them. `shutdown`: the end, when only workers are to leave.
- `attempts`, `restarts`: which attempt it is, and when the next one may begin.
- `failures`: the table of failures, and what follows from each kind.
- `timeouts`: how long the coordinator waits for workers.
"""
