"""The loop nests of a job, as the coordinator sees them (`docs/protocols/termination.md`).

- `termination`: when a wave begins, and what follows from what it found: the end of a loop, above all.
- `frame_counts`: frames that workers of a nest sent and received, added up.
"""
