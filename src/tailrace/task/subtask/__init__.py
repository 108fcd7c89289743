"""One subtask: the operators of one vertex with their inputs and outputs.

In: batches and markers that arrive, credit, and requests for cuts and waves. Out: frames, snapshots, reports.

- `machine`: the subtask; `step` does one bounded piece of work, in the order that `order` gives.
- `work`: what it does with a batch or a marker; `chain` moves event time through the operators.
- `checkpoints`: its cuts, and the hold of a stop; `alignment`: the cuts that it knows of, and when each is due; `snapshot`:
  its frozen state.
- `loop`: its part in a loop nest: commands and the end, with `loop_place` (its channels and operators there),
  `loop_waves`, `loop_rests` and `loop_rounds`.
- `handover`: a batch on its way from one operator to the next. `complete_reports`: reports of complete checkpoints to
  functions.
- `returning`: records that were in flight come back in front of new ones.
- `idle_inputs`: inputs that event time does not wait for.
- `wiring`: its channels, and their recording. `idleness`: the reasons why it does nothing, for people.
"""
