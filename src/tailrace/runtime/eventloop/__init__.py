"""The loop of a process, which waits for sockets, files and the clock.

- `loop`: one selector, callbacks, and a way in from other threads.
- `clock`: the monotonic clock of a coordinator, and the clock of a job.
- `storing`: the thread beside a loop that talks to the storage of checkpoints.
"""
