"""The runtime half of each operator kind of `graph.operators`.

In: batches, watermarks and timers from the chain of a subtask (`subtask.chain`). Out: batches, and state in its backend.

- `base`: the interface of every operator; begin here to add one.
- `stateless`: functions of records. `columns`: functions of batches, expressions, frames, and the schemas of streams.
- `process`, `functions`, `context`: process functions, their calls, and what they see. `timer_heap`, `timer_firing`: timers,
  in the order in which they are due, and the calls when they fire.
- `aggregates`, `windows`, `joins`, `duplicates`, `broadcasts`, `ordering`, `calls`: kinds of operators, a room for each.
- `late_records`: records that come too late, of any operator, and the event time that key groups had reached before a start
  at another parallelism. `timestamps`, `zonetimes`: event time, and wall clock times of a zone.
- `stores`: what joins and functions in order keep in columns.
- `sources`, `sink`, `contracts`: the ends of a dataflow. `loops`: the ends of a loop.
  `spans`: what its head holds by spans of event time.
- `failures`: records for which user code raises.
- `groupchains`: which files of checkpoints hold the state of a key group.
"""
