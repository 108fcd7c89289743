"""The process of a coordinator: a driver of the machine in `coordinator`.

- `coordinator`: the thread that drives it. `slots`: the contract with whatever provides worker processes.
- `jobstore`, `copier`: the job's work in its checkpoint folder, and copies of savepoints.
- `control`, `answering`, `requests`: requests of other processes of the user (`tailrace show`, `stop`).
- `announcing`, `warning`, `progressline`: what sinks, the log and the terminal get.
- `exits`, `moving`, `finishedrun`: the end of the program, of a machine, and of a run that had ended before.
- `settings`: settings of users in the units of the machines.
"""
