"""DataFrames, tables and state of Spark, in and out.

In: DataFrames, tables, and names of jobs and checkpoints. Out: sources and sinks for a dataflow; DataFrames of results, of
output and of state.

- `dataframe_files`: DataFrames as sources and results, by way of files. `partition_files`: these files, as Spark's own tasks
  write and read them. `places`: where they lie meanwhile.
- `schemas`, `types`, `texts`: schemas as users write them, and which types of Spark come out as they went in.
- `tables`: Spark tables as sinks. `scans`: tables that a worker reads anew without Spark.
- `streaming`, `outputsource`: the output of a job as a stream: its sink, and the data source that reads it.
- `statesource`, `savepoints`: checkpoints read as a data source, and written from DataFrames.
- `views`: temporary views of the output and the state of a job.
- `readoptions`, `jobfolders`: the options of both data sources, and the folder of a job by its name.
"""
