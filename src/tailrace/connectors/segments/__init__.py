"""The output of a sink as a log of segments, which readers follow by numbers while the job runs.

The log of a sink is in the folder of its job, and outlives the runs of the job:

    streams/<sink>/about                  the id of the log, the uid of the sink, and its columns
    streams/<sink>/log/<n>                entry n: the segments that one publication has added
    streams/<sink>/segments/part-...      the rows, in Parquet; only the log says which of them are published
    streams/<sink>/readers/..., floor/    what queries have read, and what may be gone; retained: nothing is

`log` adds entries and reads them, and is the only module that spells the names of these two; `folder` is the place where the
writers of a sink make their segments; `readers` removes what all queries have read. What Spark reads of it is in
`spark.data.outputsource`, its sink in `spark.data.streaming`.
"""
