"""Verbs that call services: `asynchronous` has `map_async`, with its options; `lookups` has `lookup`."""
