"""What the user said, as frozen data (nodes and edges), and the plan made from it. Pure functions of the graph."""
