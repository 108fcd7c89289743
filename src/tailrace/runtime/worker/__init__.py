"""The process of a worker: a driver of the machine in `task.worker`.

In: messages of the coordinator, frames of other workers, answers of the storage and of user code in threads. Out: events
for the machine of the worker; what follows from its actions: messages, frames, files.

- `main_loop`: the main loop of a worker, with sockets, the clock and the storage around the machine.
- `stepping`, `budget`: when its tasks take their steps, and how much one step may do.
- `heartbeat`, `watchdog`: the thread that gives signs of life, and reports user code that does not come back.
- `thread_samples`, `stack_frames`: the stacks of all threads, and the keys on which the time goes, on request.
- `executor_end`: whether Spark has decommissioned the executor, as the worker itself sees it.
- `coordinator_lookup`: the look-up of another coordinator where the worker's own is lost.
- `interception`, `rebinding`: stand-ins for Python's clocks and random bytes, whose readings are recorded.
- `backends`: its state backends. `python_settings`: settings of Python in it.
- `async_calls`, `operator_calls`, `lookups`, `table_readings`: asynchronous calls, one operator's, look-ups by a function,
  and tables that are read anew.
- `threads`, `sinkthreads`: threads in which user code may wait, and those in which sinks publish.
- `printing`: standard output, from which lines of user code go to the program that has started the job.
- `logs`: what user code logs, which goes the same way.
- `random_state`: the generators of `random` and `numpy.random`, which user code shares with its process.
"""
