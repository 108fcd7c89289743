"""The process of a coordinator: a driver of the machine in `coordinator`.

In: messages of workers, ends of Spark jobs, answers of the storage, requests of users. Out: events for the coordinator;
what follows from its actions: messages, processes, files, news for the user.

- `coordinator`: the thread that drives it. `slot_provider`: the contract with whatever provides worker processes.
- `jobstore`, `savepoint_copier`: the job's work in its checkpoint folder, and copies of savepoints.
- `control`, `control_server`, `user_requests`: requests of other processes of the user (`tailrace show`, `stop`).
- `monitor`: what users are shown, with `publication_calls`, `warning`, `progressline`
  and `joblog` for sinks, the log and the terminal.
- `size_changes`: changes of the size of a job on request.
- `inspecting`: close looks at the workers (`tailrace stacks`).
- `jobhtml`: a job in a notebook.
- `program_exit`: the end of the program.
- `machine_settings`: settings of users in the units of the machines.
"""
