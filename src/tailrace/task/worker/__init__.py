"""The machine of a worker process. Its drivers are `runtime.worker` and the simulator.

In: `contract.events`. Out: `contract.actions`.

- `machine`: joins a job, runs its attempts one after the other, reports, leaves.
- `attempt`: one attempt: its slice, and its part in everything below.
- `conversation`: the messages to and from the coordinator, such that another one can go on with them.
- `rendezvous`: how the workers of an attempt connect, and which older ones are fenced.
- `checkpoints`, `restore`, `publishing`: the worker's part in checkpoints, in restores and in output that becomes visible;
  `replacement_restore`: the restore of a worker that takes the place of a lost one.
- `hot_standby`, `followed_attempt`: a standby that follows the worker of a slice, and its attempt.
- `failed_calls`: capsules of failed calls, on their way.
- `task_services`: services for the worker's subtasks. `attribution`: whether an error is the user's or Tailrace's.
- `eventlog`: the worker's events as bytes, for replays in tests.
"""
