"""What users see of a job. Nothing follows from it.

- `progress`: one report, in the shape of Spark's `StreamingQueryProgress`.
- `slices`, `slice_views`: where each slice runs, and how lost workers were replaced.
"""
