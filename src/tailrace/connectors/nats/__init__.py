"""NATS JetStream: streams as source and sink. The client (`nats-py`) is imported when a connection is opened."""
