"""The start of a job on Spark: `job_submission` implements `api.launch.Launcher`, which finds it by name.

In: a plan of `graph`, and the settings of the environment. Out: the handle of a running job; before that, errors of all
that does not fit.

- `job_submission`: from a plan to a running job, step by step (`submit`).
- `checks`, `allocation`, `coordinator_placement`, `files`: the steps, each of which hands a value on.
- `hooks`: what the program runs while the job does: the progress line, calls of sinks, and the clean-up.
- `companions`, `listeners`: what runs beside the job, and listeners of Spark's queries that it reports to.
- `resizing`: other sizes of the job while it runs.
- `finished_run`: a job that an earlier run has brought to its end.
- `start_checkpoint`: the checkpoint that the job starts from: found, compared with the dataflow, and reported.
"""
