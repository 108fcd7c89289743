"""The protocols of a job: one module per conversation, with its messages and both halves. They do not know each other.

- `handshake`: two processes prove that they know the token of the job. `credit`: flow control: credits of a channel, and its
  window.
- `deployment`: how a worker joins, receives its part, reports, and leaves. `recovery`: the restart in processes that
  survived.
- `snapshot`: when a checkpoint is complete.
- `replay`: the replacement of a lost worker. `standby`, `hot_standby`: the messages of a standby, and of a hot one.
- `succession`: another coordinator goes on.
- `termination`: the waves and the end of a loop.
- `message`, `message_codec`: what a message is, and all of them as bytes.
"""
