"""The subtasks of one worker: subtask *i* of every vertex that has one.

In: frames from other workers, orders of the coordinator, steps. Out: frames for other workers, reports.

- `machine`: routes what subtasks send, in memory or to another worker, and steps them.
- `turns`: whose turn it is among them.
- `nests`: what they find out about loops, as one message for each nest.
"""
