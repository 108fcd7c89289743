"""What every process of a job waits in: a selector of sockets and files, with a clock. The main loop of a worker is
`runtime.worker.main_loop`, that of a coordinator `runtime.driver.coordinator`.

In: sockets that are ready, calls from other threads, times at which a call is due. Out: calls, one after the other, in one
thread.

- `selector`: one selector, callbacks, and a way in from other threads.
- `clock`: the monotonic clock of a coordinator, and the clock of a job.
- `storage_thread`: the thread beside a loop that talks to the storage of checkpoints.
"""
