"""The way of the output that sinks have prepared, until it is visible.

- `publishing`: what is published behind a checkpoint: what was sent, what is visible, which manifests are marked.
- `publish_decision`: which output may be published and which never again; a pure function.
- `parts`: the messages of a publication. `lanes`: their way to the workers that publish, and the sinks that are away.
- `outages`: places that are out of reach, and when they are tried again.
- `origin`: the checkpoint that the run has started from, and the one that the next attempt restores.
"""
