"""The way of the output that sinks have prepared, until it is visible.

- `output`: the front: output is published, manifests are marked, and sinks may forget it.
- `publications`: what workers were requested to make visible, and what is answered.
- `published_marks`: manifests of this run, and which of them are marked as published.
- `origin`: the checkpoint that the run has started from, and the one that the next attempt restores.
"""
