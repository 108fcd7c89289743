"""The way of the output that sinks have prepared, until it is visible.

- `publication`: what may be published and what never again; a pure function.
- `output`: the book of output: what was sent, what is visible, which manifests are marked.
- `parts`: the messages of a publication.
- `origin`: the checkpoint that the run has started from, and the one that the next attempt restores.
"""
