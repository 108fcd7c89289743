"""The replacement of a lost worker while the others go on, and the standbys that take its slot.

In: a checkpoint, the history of the lost worker that its peers kept (`journal`), what they sent it (`journal.sent_log`).
Out: a slice with the lost one's state.

- `replayable_slice`: the slice of a worker that may be replaced. The rooms below do not know whether one may be.
- `slice_choice`: which slice a worker makes, as its job requires.
- `standby`, `standby_mirrors`: a standby, and the state that it holds of other workers' slices.
- `standby_feed`, `withheld_output`: what a worker sends its hot standby, and output that this one does not write.
- `history_sending`: the histories that each worker sends. `survivor`: what a worker that goes on reports and sends for a
  replacement. `replacement`: what the replacement does.
- `channel_restore`: records that were in flight, back in their channels.
- `replay`, `parallel_replay`: the replay of the lost worker's history; `replayed_steps`: of one step or cut of it.
"""
