"""Sources and sinks that come with Tailrace.

- `sources`, `sinks`, `lookups`: what `tr.sources`, `tr.sinks` and `tr.lookups` list.
- `files`: files of records, in rows and columns. `kafka`, `postgres`, `redis`, `nats`, `lake`: servers and lake tables, a
  room for each. `databases`: any DB-API driver. `streaming`: batches of a streaming query. `segments`: output that Spark
  reads.
- `transactional`: the base of sinks that write into a server. `fetched`: readers whose client fetches ahead.
- `filesinks`, `publishing`, `hidden`: sinks of files, which are under cover until they are published, once. `folders`,
  `localfiles`, `remotefiles`, `s3files`, `pieces`: the places that they lie in. `results`, `travelling`: files of results.
- `paths`, `lines`: the files at a path, and their lines. `following`, `followed`, `file_marks`: files that are followed, one
  of them, and how it is recognised. `pace`: a number of records per second.
- `parquet`, `parquetwriter`, `lengths`, `schemas`: Parquet as Spark reads it, limits of texts, and schemas that users give.
"""
