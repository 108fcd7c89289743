"""A coordinator on an executor, for a program that executors cannot reach (`docs/decisions/0022`).

In: letters of the program, and requests for files. Out: letters of the coordinator: processes to start, the job as it goes,
its end.

- `outpost`: the process that hosts the coordinator. `job_follower`: the thread of the program that follows the job.
- `mailbox`: letters between the two, carried by short Spark tasks, each read once and in order.
- `succession`: the wait of such a process for the workers of a coordinator that was lost.
- `hosted_folder`: a folder of the driver that executors reach.
"""
