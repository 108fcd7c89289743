"""The loop nests of a job, as the coordinator sees them (`docs/protocols/termination.md`).

- `loops`: when a wave begins, and what follows from what it found.
- `frame_counts`: frames that workers of a nest sent and received, added up.
"""
