"""Records of an operator's inputs that are kept as columns until event time lets go of them.

In: batches in columns, with keys. Out: records by their places, to be joined or handed over. State of them is blocks of
columns, one for each key group.

- `store`: the records of both inputs, their numbers, and their table.
- `segments`: records in memory, with an index by time, and by key and time.
- `chunks`: records in checkpoints.
- `places`: some of the records, over all segments.
- `unmatched`: records that have to come out, in order.
"""
