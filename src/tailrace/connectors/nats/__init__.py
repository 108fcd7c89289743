"""NATS JetStream: streams as source and sink. The client (`nats-py`) is imported when a connection is opened.

- `source`: one split for each stream. `sink`: atomic batches, each with a mark.
- `server`: connections, and what is checked before a job starts.
"""
