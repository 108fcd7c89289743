"""The views of a job for its users. Nothing else depends on them.

- `snapshot`, `snapshots`: a job at a moment as data, made by `operators`, `lags` and `shape`.
- `diagnosis`: what holds the job; `summary`: the job in a line.
- `progress`: one report, in the shape of Spark's `StreamingQueryProgress`.
- `slices`, `slice_views`: where each slice runs, and how lost workers were replaced.
"""
