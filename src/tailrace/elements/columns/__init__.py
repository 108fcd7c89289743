"""Columns: the one place where values become columns, and columns of one type columns of another.

A value that goes into a column is the same value when it comes out, or it is a `Misfit`.
"""
