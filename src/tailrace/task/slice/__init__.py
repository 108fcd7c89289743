"""The subtasks of one worker: subtask *i* of every vertex that has one.

In: frames from other workers, commands of the coordinator, steps. Out: frames for other workers, reports.

- `machine`: routes what subtasks send, in memory or to another worker, and steps them.
- `turns`: the order in which the subtasks have their turns.
- `preparation`: the user's `prepare`, before a slice is made.
- `nests`: the subtasks' findings about loops, as one message for each nest.
"""
