"""One module per conversation, with its messages and both halves. Conversations do not know each other."""
