"""Functions of a stream and a broadcast stream.

In: batches of records, with or without keys, and records of the broadcast stream, which come to every subtask in one order.
Out: the records that the function emits, and equal copies of its broadcast state in all subtasks.

- `process`: the operator in one subtask.
- `ordered`: the operator that is called in the order of event time.
- `waiting`: broadcast records that wait for event time, in a checkpoint.
- `kinds`: the runtime half of each kind of process function.
"""
