"""The command line: `tailrace run FILE.py[:function] [ARGS...]`. It needs the extra `cli`.

- `main`: the commands and their options. `commands`: hints for a name that is none.
- `run`, `program`, `supervise`: `tailrace run`, the user's file as a program, and a program that is started again.
- `control`: commands to running jobs. `showing`: a job as text. `watching`, `keyboard`: `doctor`, `stacks` and `top`.
- `inspect`, `prune`: commands on a checkpoint folder. `debug`: a failed call, made again. `ui`: the page of all jobs.
"""
