"""What a worker and its driver agree on: values, without behaviour.

In: `events` (what happens to a worker), `jobspec` and `tuning` (what it knows beforehand). Out: `actions`.

- `events`, `actions`: to add something that a worker reacts to, or wants of its driver.
- `facts`: what a step finds out that does not follow from what came before it.
- `recorded_answers`: what user code asks of the world outside, kept so that a replay gets the same answers.
- `functions`, `usercode`: function objects of the user, and errors of theirs with operator, subtask and record.
"""
