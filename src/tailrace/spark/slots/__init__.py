"""Workers as Spark tasks.

In: the settings of a worker (`WorkerConfig`), one for each slot. Out: a process in a Spark task, the report of its end, and
executors that are about to go.

- `worker_launch`: the start of workers: a Spark job with a single task for each slot. Implements
  `runtime.driver.slot_provider`.
- `worker_task`: the Spark task that is a worker. `failure_texts`: failures of Spark jobs in words.
- `slot_reservations`: the task slots that jobs hold. `driver_address`: where workers reach this process.
- `threads`: the threads of the driver that keep these Spark jobs. `profiles`: the share of a core that a task takes.
- `slot_watch`: how many task slots there are for an elastic job.
- `reachability`: whether executors can connect to this process.
"""
