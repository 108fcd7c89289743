"""The classes that a user writes with, and what they check while a dataflow is written. Nothing runs here.

- `environment`, `streams`, `launch`, `config`: where a dataflow begins, its streams with their verbs, the job, the settings.
- `functions`, `aggregates`, `connectors`: the classes that users subclass, and built-in aggregates.
- `verbs`, `joins`, `calls`, `windows`, `loops`, `sql`: what the verbs of streams consist of, by subject.
- `nodes`, `failure_options`, `spill`: the node of a verb, records for which user code raises, records that memory has no
  room for.
- `checks`: checks of arguments and functions, and hints for names that do not exist.
- `restore`: what a start from a checkpoint goes by: kinds and shapes of operators, the dataflow's identity, savepoints.
"""
