"""Keyed state: its declarations, the handles a function works with, and the backends that hold it."""
