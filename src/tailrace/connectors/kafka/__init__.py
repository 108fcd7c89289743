"""Kafka as a source and as a sink, with the client of Confluent (`tailrace[kafka]`).

`source` and `sink` are what users name, `enumerator` finds partitions and offsets, `reader` reads the partitions of a
subtask with one consumer, `transactions` writes in transactions, `formats` has what records look like, `client` reaches the
server. The client is imported where it is used, and made in the process that uses it: it does not survive a fork.
"""
