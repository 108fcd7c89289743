"""The loop nests of a job, as the coordinator sees them (`docs/protocols/termination.md`).

In: reports of workers on the rest of their loops, on waves and on rounds. Out: commands to the workers of a nest: a wave,
event time, a round, `finish`, the end.

- `termination`: when a wave begins, and what follows from what it found: the end of a loop, above all.
- `quiet_counts`: records and markers that workers of a nest sent and received, added up.
"""
