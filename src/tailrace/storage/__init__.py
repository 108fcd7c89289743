"""Storage of checkpoints and of large state: local folders, object stores, databases on local disk.

- `store`: the checkpoints of one job in a folder; begin here. `manifest_slots`: manifests, seals and pointers, one place
  for each number. `fencing`, `claim_owner`: which run holds an incarnation, so that no earlier driver commits; whether its
  process lives.
- `checkpoint_lookup`: the checkpoint that a user names, or the newest. `origins`: those around the one that a job starts
  from. `reading`: the state in one.
- `savepoints`: savepoints, and copies into them.
- `leftovers`, `pruning`: what runs leave behind, and the removal of what dead ones have left. `end_of_run`: what a run may
  do behind its end.
- `filesystem`: the contract of a folder. `opening`: a folder by its URL. `remote`, `hadoop`: folders behind fsspec.
  `time_limits`, `parallel`: time limits of requests, and many at once.
- `disk_backend`: keyed state on disk. `scratch`: folders that end with their process. `spill`, `storedspill`: places for
  what has no room in memory, on disk and in the storage of checkpoints.
"""
