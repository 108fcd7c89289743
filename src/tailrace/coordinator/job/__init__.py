"""The life of a job, as rules: `coordinator.course` moves the job by them.

In: what has failed, and when; the settings of the user. Out: the next state of the job, and whether and when another
attempt begins.

- `lifecycle`: the states of a job, and every legal step between them. `shutdown`: the end, when only workers are to leave.
- `attempts`, `restarts`: which attempt it is, and when the next one may begin.
- `failures`: the table of failures, and what follows from each kind.
- `timeouts`: how long the coordinator waits for workers.
"""
