"""Streaming queries of Spark that a job starts, watches and stops.

In: a streaming DataFrame, or a function for each batch of output. Out: a query that writes batches for a source to read;
calls of the function with a DataFrame.

- `dataframe`: the source that `env.from_streaming(df)` makes, with the query that feeds it.
- `plain_columns`: the columns as Spark's Parquet sink writes them for that query.
- `queries`: the queries of a job while it runs. A query that fails fails the job, and the end of the job stops its queries.

- `foreach`, `calls`: the sink `ForeachBatch`, and its calls in the program.

What lies in the folder of the batches, and how it is read, is in `tailrace.connectors.streaming`.
"""
