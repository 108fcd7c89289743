"""Graphs whose edges come and go: a stream of changes of edges in, a stream of changes of the result out.

A change of an edge is a record ("+" or "-", src, dst), with a fourth part for the weight where an algorithm takes one. A
change of the result is ("+", id, value...) or ("-", id, value...): a "-" takes back what a "+" has emitted before. After
each change, or after all changes that have come together, the result is that of the static algorithm over the edges that are
there, or as near to it as a tolerance permits.

`edges` keeps the graph in the keyed state of one subtask; `spans` is what a new graph gets before its first quiet moment, in
arrays. `components`, `degrees`, `paths`, `cores`, `labels` and `ranks`
are one algorithm each: a function that works out anew what a change may have changed. `order` is the order of vertices that
cores need. `verbs` makes streams of them.
"""
