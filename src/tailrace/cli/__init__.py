"""The command line: `tailrace run FILE.py[:function] [ARGS...]`. It needs the extra `cli`.

- `main`: the list of the commands. `commands`: hints for a name that is none.
- `run`: `tailrace run`. `run_file`, `program`: the run of the user's file to the end of its jobs, and the file as a program.
  `supervise`: a program that is started again.
- `control`: commands to running jobs. `showing`: a job as text. `watching`, `keyboard`: `doctor`, `stacks` and `top`.
- `inspect`, `prune`: commands on a checkpoint folder. `debug`: a failed call, made again. `ui`: the page of all jobs.
"""
