"""One subtask, and the slice of subtasks that one worker hosts. Events go in, actions come out; nothing here waits.

Only here is decided in which order the conversations act.
"""
