"""The parts of a job that outlive an attempt.

In: the clock, acks of workers, answers of the storage, requests of users. Out: requests for cuts, claims, manifests to
commit, files to delete, and the answers to users.

- `durability`: the front of this room for the rest of the coordinator.
- `incarnation_claims`: the claim of the incarnation under which the job commits, which fences earlier drivers.
- `checkpoints`, `manifest_entries`: pending and complete checkpoints, and what a manifest says.
- `savepoints`, `stopping`: requested copies of checkpoints, and stops with a last checkpoint.
"""
