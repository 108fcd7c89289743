"""SQL as a verb, `stream.sql("select ... from stream where ...")`, and Columns of PySpark, on streams in columns.

A query becomes trees of calls of Spark's functions (`tree`): `reader` makes them of the text, which sqlglot reads, and
`dataframe` of Columns. `translation` gives each node its type as Spark does, with the names of columns, and makes an
expression of `pyarrow.compute` of it: a `filter` and a `select` run. `functions` has the table of functions by Spark's
names, `arithmetic` numbers, `comparison` comparisons, `typed` the types and casts, `texts` strings, `dates` times. `verb`
puts it into the graph.

The one rule: a result is Spark's, or the text is refused where it is written, with the name of what is not there and its
place, or the job fails with the record. Rules are those of Spark 4 as it is set up (`spark.sql.ansi.enabled`): an overflow
or a division by zero is an error. Nothing depends on the time zone of a session.
"""
