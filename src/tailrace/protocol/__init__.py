"""The protocols of a job: one module per conversation, with its messages and both halves. They do not know each other."""
