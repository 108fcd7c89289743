"""Python Data Sources of PySpark (`pyspark.sql.datasource.DataSource`), read by the workers of a job, without micro-batches.

In: a name or a class of a data source, with options and a schema. Out: splits and records for a source of a dataflow.

| question | module |
|---|---|
| which class has a name? | `classes` |
| what does a class read, with these options and this schema? | `declared` |
| how do its tuples, rows and record batches become records? | `records` |
| how is an iterator read that may wait? | `ahead` |
| how are partitions and offsets listed while a worker goes on? | `listing` |
| the source of a batch reader | `batch` |
| the source of a stream reader: ranges of offsets, and who reads them | `stream`, `planner`, `offsets` |
| what does the verb of a program make? | `source` |
"""
