"""Columns: the one place where values become columns, and columns of one type become columns of another.

A value that goes into a column is unchanged when it comes out, or it is a `Misfit`.
"""
