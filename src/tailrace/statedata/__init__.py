"""State as data: the content of a checkpoint as rows and columns that a user can look at, count, join and write anew.
Independent of Spark, which reads and writes through this package.

- `stored`: a checkpoint, opened for reading. `listings`: what it holds beside entries of state.
- `columns`, `types`: entries as columns, and the types of these. `keyed_states`: several states in one row for each
  key. `values`: columns as values of state.
- `writing`, `newcheckpoint`: files of new state, and a savepoint that a user makes of them.
- `key_group_split`: more key groups. `inputs`: files of DataFrames that sources have left to read.
- `fitting`: a dry run.
"""
