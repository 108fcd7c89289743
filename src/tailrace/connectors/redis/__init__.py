"""Redis and Valkey: streams as source and sink, hashes as a sink for serving, lookups. The client (`redis`) is imported when
a connection is opened.

- `source`, `sinks`, `lookup`: `tr.sources.RedisStream`, `tr.sinks.RedisStream` and `RedisHash`, `tr.lookups.RedisHash`.
- `marked`: transactions with a mark, by a script of the server.
- `server`: connections, and what is checked before a job starts.
"""
