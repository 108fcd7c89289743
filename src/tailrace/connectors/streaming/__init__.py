"""The batches of a Structured Streaming query, as a source.

A query of Spark writes each of its micro-batches into a folder, and a job reads them from there, each once. The two have
checkpoints of their own, and either may be restarted without the other:

- `batches`: the folder. A batch is there when its *list* is: a file that names the files of the batch, created in one atomic
  act. The id of a batch is its place in the stream. A query repeats a batch whose end its checkpoint does not have; Spark's
  file sink skips it if it was committed.
- `listing`: the lists, which the driver makes by what Spark's file sink notes. `batchfiles`: the files, which are Parquet.
- `lanes`: the reader. The partitions of Spark's tasks are dealt to lanes, which are the splits of the source. A lane reads
  its files of one batch after the other, so the rows of a partition stay in order.
- `source`: the source itself.

The room `tailrace.spark.streaming` starts the query and writes the files.
"""
