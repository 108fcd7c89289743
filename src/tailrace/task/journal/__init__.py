"""The records that a slice keeps so that another worker can replay its steps from the newest checkpoint.

In: each step of a task, each cut, each message that counts. Out: entries for the other workers, and steps to be replayed.

- `history`: the entries, in order; `facts` are what they hold of a step.
- `replayable_gate`, `replayable_outbox`, `replayable_feedback`, `replayable_inflight`: the ends of channels, which record
  what a step does with them, and do it again in a replay. `sent_log` keeps what went to other workers, `shapes` are of
  records in flight, `digests` compare two executions of a channel, `merged_reads` reads for several steps at once.
- `outside_answers`: the answers of the world outside to user code, recorded and given again; `opening` keeps those to the
  user's `open`. `clock_readings` has what user code reads of clocks and random bytes, as one answer for each step.
- `compared_values`: the values that go to other workers, compared by their hashes (`elements.valuedigests`).
- `task_state`: what a task knows at a cut that no checkpoint holds, put together from its objects (`contract.cut_state`).
- `divergence`: the error of a worker that does something else than the lost one did.
"""
