"""The processes around the machines: sockets, files, threads and clocks of a worker and of a coordinator.

- `job`: the handle of a job, which users get.
- `driver`: the process of a coordinator. `outpost`: a coordinator on an executor, and the program that follows it.
- `worker`: the process of a worker. `capsules`: failed calls of user code, made again.
- `network`: connections between them. `eventloop`: the loop that waits for sockets, and its clock.
"""
