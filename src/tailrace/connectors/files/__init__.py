"""Sources of files, and writers of files in columns.

- `sources`: the base of sources. `places`: folders of this machine and URLs. `newfiles`: files that come later.
- `records`: readers of records of text. `csvfiles`, `jsonfiles`, `jsoncolumns`, `jsonvalues`, `parquetfiles`, `blocks`: the
  formats.
- `partitions`: columns in the names of folders; `partitioned`: a writer into such folders.
- `columnssink`, `columnswriter`, `textwriters`: the base of sinks in columns, and their writers. `rolling`: when a sink
  begins another file (`filesinks` does it); `holding`: files that go on over checkpoints.
"""
