"""Windows of event time.

In: records with timestamps, and watermarks. Out: a result for each window that is over, and late records.

- `kinds`: which class runs which kind.
- `windowtimes`: where tumbling and sliding windows begin and end.
- `aggregates`: tumbling and sliding windows. Their state is in entries, or in arrays: `state`, `timers`, and to checkpoints
  and back `fronts`, `load`.
- `triggered`: early and late firings beside the final one.
- `firing`: the base of all kinds: functions, late records, results in rows and columns.
- `sessions`: sessions, with state in entries. `columnsessions`: sessions in columns, with state in arrays: `sessionstate`
  (`agenda`: when each is due), `sessionbatch` (what a batch adds), `sessionfront`, `sessionload` (to checkpoints and back).
  `sessionbounds`: sessions without aggregates, for joins.
"""
