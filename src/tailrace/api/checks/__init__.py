"""Checks that are made while the user writes the dataflow. Each error names the operator and what to do.

- `arguments`: values of arguments.
- `event_time`, `untimed_inputs`: functions and options that need event time.
- `spans`: what may be in a loop in rounds by spans of event time.
- `side_outputs`, `tags`: tags to which functions emit, and those that are read.
- `hints`: what to write in place of a name that does not exist.
"""
