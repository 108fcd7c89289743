"""Sources and sinks of PostgreSQL.

- `server`: connections, and errors that name the server and no password.
- `kinds`: types of PostgreSQL as columns of Arrow, and values as the text that `COPY` reads.
- `target`: the table of a sink: what it must have, and the statements that write into it.
- `sink`: `tr.sinks.Postgres`.
- `query`: the description of a query, and its ranges; `source`: `tr.sources.Postgres`.
- `fetching`: readers whose thread waits for the server.
- `changes`: `tr.sources.PostgresChanges`; `replicated`: what the server must have for it; `pgoutput`: the messages.
- `lookup`: `tr.lookups.Postgres`.
- `lineage`: whether the log of a new primary holds what was read before.
"""
