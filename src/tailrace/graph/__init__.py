"""The user's program as frozen data (nodes and edges), and the plan made from it by pure functions."""
