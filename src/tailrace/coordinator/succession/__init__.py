"""A coordinator whose work another one goes on with, while the workers run (docs/protocols/succession.md).

- `machine`: the coordinator that logs its events, and goes on from the log of a lost one.
- `eventlog`: the log, its mirrors, and the actions that wait until they have it.
- `conversations`: what has gone to each worker, and what has come from it.
"""
