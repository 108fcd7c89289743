"""The replacement of a lost worker while the others go on, and the standbys that take its slot.

In: a checkpoint, the history of the lost worker that its peers kept (`journal`), what they sent it (`journal.sent_log`).
Out: a slice with the lost one's state.

- `recorded_slice`: the slice of a worker that may be replaced. The rooms below do not know whether one may be.
- `slices`: which slice a worker makes, as its job requires.
- `standby_loop`, `mirrors`: a standby, and the state that it holds of other workers' slices.
- `feed`, `withheld_output`: what a worker sends its hot standby, and output that this one does not write.
- `takeover`: what the workers of a job do for a replacement, and what the replacement does.
- `channel_restore`: records that were in flight, back in their channels.
- `replay`, `parallel_replay`: the replay of the lost worker's history; `steps`: of one step or cut of it.
"""
