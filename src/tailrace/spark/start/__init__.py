"""The start of a job on Spark: `launcher` implements `api.launch.Launcher`, which finds it by name.

- `launcher`: from a plan to a running job, step by step; the other rooms of `spark` do the steps.
- `hooks`: what the program runs while the job does: the progress line, calls of sinks, and the clean-up.
- `start_checkpoint`: the checkpoint that the job starts from: found, compared with the dataflow, and reported.
"""
