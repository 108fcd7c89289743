"""The records that a slice keeps so that another worker can replay its steps from the newest checkpoint.

In: each step of a task, each cut, each message that counts. Out: entries for the other workers, and steps to be replayed.

- `history`: the entries, in order; `facts` are what they hold of a step.
- `recorded_gate`, `recorded_outbox`, `recorded_feedback`, `recorded_inflight`: the ends of channels, with what a
  replacement needs of them; `sent_log` keeps what went to other workers, `shapes` are of records in flight, `digests`
  compare two executions of a channel, `merged_reads` reads for several steps at once.
- `recorded_answers`: the answers of the world outside to user code; `opening` keeps those to the user's `open`,
  `recorded_clocks` has what user code reads of clocks and random bytes, as one answer for each step.
- `compared_values`: the values that go to other workers, compared by their hashes (`elements.valuedigests`).
- `task_state`: what a task knows at a cut that no checkpoint holds, put together from its objects (`contract.cut_state`).
- `divergence`: the error of a worker that does something else than the lost one did.
"""
