"""The views of a job for its users. Nothing else depends on them.

In: the bookkeepers, and progress reports of workers. Out: values that a program shows, without any way back.

- `job_snapshot`, `snapshot_maker`: a job at a moment as data, made by `operator_figures`, `lags` and `shape`.
- `jobview`: all of these in one value, which the program shows. `tracebacks`: user code's tracebacks as text.
- `diagnosis`: what holds the job; `summary`: the job in a line.
- `progress`: one report, in the shape of Spark's `StreamingQueryProgress`.
- `slices`, `view_makers`: where each slice runs, and how lost workers were replaced.
"""
