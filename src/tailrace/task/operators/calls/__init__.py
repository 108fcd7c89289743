"""Asynchronous calls: records whose results come later.

In: batches, and the answers to calls (`contract.calls`). Out: results, in the order of the operator; and event time, which
waits for them.

- `task`: the operator, which keeps records until their results have gone on.
- `pending`: these records, as state in key groups.
- `orders`: which results may go on, and which calls may begin.
- `opening`: what a function can use while it is opened.
"""
