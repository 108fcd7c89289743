"""The parts of a job that outlive an attempt.

- `durability`: the front of this room for the rest of the coordinator.
- `incarnation`: the incarnation that the job holds.
- `checkpoints`, `manifest_entries`: pending and complete checkpoints, and what a manifest says.
- `savepoints`, `stopping`: requested copies of checkpoints, and stops with a last checkpoint.
"""
