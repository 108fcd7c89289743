"""The user's program as frozen data (nodes and edges), and the plan made from it by pure functions.

- `graph`, `operators`, `scope`: nodes and edges, kinds of operators, and the loops that an operator is in.
- `uids`: the uids of operators, and their derivation where the user gives none.
- `plan`, `loops`: chains, channels and slots, and what loops add to them. `sizes`: the plan of another size.
- `declared`: schemas that are known before anything runs.
- `explain`, `picture`, `layout`: a plan and a graph for users, as text and as a picture.
"""
