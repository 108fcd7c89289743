"""The coordinator of one job: a deterministic machine. Events go in, actions come out; its drivers are
`runtime.driver.coordinator` and the simulator.

`machine` hands each event to the bookkeepers of a room; `course` carries out what they decide (`decisions`), and
`actions` are what the driver is to do.

- `job`: the states of the job, its attempts, and what follows from each failure.
- `workers`: slots, standbys, and the replacement of lost workers.
- `durability`: claims, checkpoints, savepoints, stops.
- `output`: what of the output is published, and which manifests say so.
- `loops`: waves through loop nests, and their ends.
- `stats`: how checkpoints went.
- `view`: what users see of all that: progress and slices.
"""
