"""The replacement of a lost worker while the others go on, and the standbys that take its slot.

In: a checkpoint, the history that others kept of the lost worker (`journal`), what they sent it (`channels.sent_log`).
Out: a slice that stands where the lost one stood.

- `standby_loop`, `mirrors`: a standby, and the state that it holds of the slices of others.
- `takeover`: what the workers of a job do for a replacement, and what the replacement does.
- `channel_restore`: what was in flight, back in its channels.
- `replay`, `parallel_replay`: the steps of the lost worker, done again.
"""
