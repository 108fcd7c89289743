"""A coordinator whose work another one goes on with, while the workers run (docs/protocols/succession.md).

In: every event of a coordinator; behind a loss, the log at the workers, a claim, and what each worker has received. Out:
log entries for two workers, actions once one of these has the log; a coordinator that goes on.

- `machine`: the coordinator that logs its events, and goes on from the log of a lost one.
- `eventlog`: the log, its mirrors, and the actions that wait until they have it.
- `conversations`: what has gone to each worker, and what has come from it.
"""
