"""Kafka as a source and as a sink, with the client of Confluent (`tailrace[kafka]`). The client is imported where it is
used, and made in the process that uses it: it does not survive a fork.

- `source`, `sink`, `records`: what users name, and a record with all that belongs to it.
- `enumerator`: partitions and offsets. `reader`: the partitions of a subtask, with one consumer. `identity`: ids of topics.
- `transactions`: producers, in transactions with their marks, and directly.
- `formats`: what records look like. `avro`, `protobuf`, `messages`, `registry`: forms whose schemas are in a registry.
- `client`: settings of the client, and its errors in words.
"""
