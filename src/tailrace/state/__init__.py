"""Keyed state: its declarations, the handles a function works with, the backends that hold it, and the formats of
checkpoints.

- `handles`, `operator_state`, `broadcast_state`: what users declare, and the handles that functions use. `views`: copies
  that refuse changes. `declarations`, `msgspec_roundtrip`: declared types, and encodings that must give a value back.
- `backend`: the contract. `memory_backend`, `memory_tables`: the backend in memory, and the dictionaries that hold its
  values (the one on disk is `storage.disk_backend`). `tables`, `layers`: the layers of both, and their snapshots.
- `ttl`: states with a time to live, their declaration and form. `ttl_lifetimes`: which entries are over. `ttl_handles`:
  handles that give what lives. `ttl_sweeping`: the removal of the rest.
- `codecs`, `blocks`, `format`, `manifest`, `paths`: values, blocks, files and manifests as bytes, and where files lie.
  `parts`, `restoring`: the order of a restore, and blocks that become entries again.
- `end_mark`: the mark of the end of a run. `job_holder`: which run holds a job.
- `undo_log`: the undoing of a failed call. `pickle_roundtrip`, `sharing`: values that would not come back as they are, or
  are in two entries.
"""
