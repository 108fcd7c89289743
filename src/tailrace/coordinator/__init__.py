"""The coordinator of one job: a deterministic machine. Events go in, actions come out; its drivers are
`runtime.driver.coordinator` and the simulator.

`machine` hands each event to the bookkeepers of a room; `course` carries out what they decide (`decisions`), and
`actions` are what the driver is to do.

- `job`: the states of the job, its attempts, and what follows from each failure.
- `workers`: slots, standbys, and the replacement of lost workers.
- `durability`: claims, checkpoints, savepoints, stops.
- `output`: the publication of output, and the marks of manifests whose output is published.
- `loops`: waves through loop nests, and their ends.
- `succession`: the coordinator whose work another one goes on with, where it is lost.
- `checkpoint_stats`: the figures of checkpoints.
- `view`: progress and slices, as users see them.
"""
