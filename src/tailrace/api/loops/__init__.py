"""Loops, as users write them: `loops` writes one into the graph, `options` has its options and the figures of its rounds."""
