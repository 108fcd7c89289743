"""Windows whose bounds follow from their records, and what all kinds of windows share.

In: records with timestamps, and watermarks. Out: a result for each window that is over, and late records.

- `kinds`: which class runs which kind.
- `windowtimes`: where tumbling and sliding windows begin and end.
- `firing`: the base of all kinds: functions, late records, results in rows and columns.
- `sessions`: sessions, with state in entries. `columnsessions`: sessions in columns, with state in arrays: `sessionstate`
  (`agenda`: when each is due), `sessionbatch` (what a batch adds), `sessionfront`, `sessionload` (to checkpoints and back).
"""
