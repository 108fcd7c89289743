"""One subtask: the operators of one vertex with their inputs and outputs.

In: batches and markers that arrive, credit, and requests for cuts and waves. Out: frames, snapshots, reports.

- `machine`: the subtask; `step` does one bounded piece of work, in the order that `order` gives.
- `work`: what it does with a batch or a marker; `chain` moves event time through the operators.
- `alignment`: the cuts that are known, and when each is due. `snapshot`: the subtask's part in the checkpoint.
- `loop`: its part in a loop nest: commands and the end, with `loop_place` (its channels and operators there),
  `loop_waves`, `loop_rests` and `loop_rounds`.
- `returning`: records that were in flight come back in front of new ones.
- `opening`: the user's `open`, kept for a replacement. `idle_inputs`: inputs that event time does not wait for.
- `wiring`: its channels. `idleness`: the reasons why it does nothing, for people.
"""
