"""Keyed state: how it is declared, the handles a function works with, and the backends that hold it."""
