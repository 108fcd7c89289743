"""The way of the output that sinks have prepared, until it is visible.

In: what a manifest holds of prepared output, and reports of workers that it is visible. Out: `Publish` messages, manifests
to mark as published, output to remove.

- `publishing`: what is published behind a checkpoint: what was sent, what is visible, which manifests are marked.
- `publish_decision`: which output may be published and which never again; a pure function.
- `parts`: the messages of a publication. `lanes`: their way to the workers that publish, and the sinks that are away.
- `outages`: places that are out of reach, and when they are tried again.
- `origin`: the checkpoint that the run has started from, and the one that the next attempt restores.
"""
