"""Channels of one subtask, and what waits in them: inputs, outputs, the feedback edge.

In: frames from other workers, batches of the same worker. Out: batches for the operators, frames for other workers as
credit allows, and logs of what a checkpoint finds in flight.

- `gate`, `inputs`, `min_watermark`: input channels, the order in which they are read, and the watermark over them.
- `outbox`, `partition`, `key_readers`: output channels, and which record goes to which of them.
- `feedback`, `combining`: the feedback queue of a loop, and where its log begins and ends.
- `channel_logs`: records that wait, as checkpoints see them. `written_records`, `spilling`, `lazy_records`: their places.
- `services`: random numbers, clocks and ids, which come from above; `copies`: copies of records, and their fingerprints.
"""
