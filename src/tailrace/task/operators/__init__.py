"""The runtime half of each operator kind of `graph.operators`."""
