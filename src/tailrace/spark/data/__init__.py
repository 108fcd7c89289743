"""DataFrames, tables and state of Spark, in and out.

- `dataframes`, `row_files`, `places`: rows of DataFrames and of results, and where their files lie meanwhile.
- `schemas`, `types`, `texts`: schemas as users write them, and which types of Spark come out as they went in.
- `tables`: Spark tables as sinks.
- `statesource`, `savepoints`: checkpoints read as a data source, and written from DataFrames.
"""
