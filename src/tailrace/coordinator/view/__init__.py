"""The views of a job for its users. Nothing else depends on them.

- `progress`: one report, in the shape of Spark's `StreamingQueryProgress`.
- `slices`, `slice_views`: where each slice runs, and how lost workers were replaced.
"""
