"""Verbs that call services: `asynchronous` has `map_async`, with its functions and options."""
