"""The elements of a channel: batches in two forms, markers between them, frames on the wire."""
