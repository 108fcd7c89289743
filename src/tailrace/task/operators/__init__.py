"""The runtime half of each operator kind of `graph.operators`.

In: batches, watermarks and timers from the chain of a subtask (`subtask.chain`). Out: batches, and state in its backend.

- `base`: the interface of every operator; begin here to add one.
- `stateless`, `batches`, `expressions`, `dataframes`: functions of records, of batches, of columns, of frames.
- `process`, `context`, `timers`: process functions, what they see, and when their timers fire.
- `aggregate`, `accumulators`, `aggregateloops`, `arrow`, `grouping`, `columnstate`: aggregates in rows and in columns.
- `window`, `windowstate`, `windowtimers`, `windowfronts`, `windowload`: windows in rows and in columns.
- `windows`: sessions, and what all kinds of windows share.
- `source`, `splits`, `sink`, `contracts`: the ends of a dataflow. `loops`: the ends of a loop.
- `timestamps`, `batchtimes`: event time. `columns`, `schemas`, `expected`: the schema of a stream.
- `groupchains`: which files of checkpoints hold the state of a key group.
"""
