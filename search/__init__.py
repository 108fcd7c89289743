"""The workshop: searches that run thousands of simulated jobs and look for a wrong result. No part of the package.

`python -m search --seeds 0:2000` goes through the golden programs, with `--random` through random dataflows.

- `programs`: golden programs, each with one right result. `scenarios`: a program, settings and faults, all from one seed.
- `campaigns`: scenarios of one subject: unaligned checkpoints, replacements of lost workers, losses on real Spark.
- `watchers`: checks while a simulated job runs.
- `random_flows`: dataflows by chance, against a plain interpreter.
- `planted`: bugs that the searches must find. `python -m search.finding NAME` reports how soon.
- `stops`, `starts`, `changes`, `outages`, `servers`, `values`, `replay`: searches of their own, each with
  `python -m search.NAME`.
- `functions`: the functions of Arrow against exact Python.
"""
