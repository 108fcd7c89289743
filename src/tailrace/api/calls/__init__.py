"""Verbs that call services: `asynchronous` has `map_async`, with its options; `lookups` has `lookup`
by a function, and `refreshes` has `lookup` in a table that is read anew."""
