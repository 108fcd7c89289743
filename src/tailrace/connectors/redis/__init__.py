"""Redis and Valkey: streams as source and sink, hashes as a sink for serving, lookups. The client (`redis`) is imported
when a connection is opened."""
