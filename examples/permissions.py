"""Who may reach what, while memberships are granted and revoked: a small Datalog program with deletion.

    python examples/permissions.py

    reachable(x, y) :- grant(x, y).
    reachable(x, z) :- reachable(x, y), grant(y, z).

A fact holds as long as it has a derivation, also where derivations go in a circle: what holds only by itself does not. So a
fact is kept with the length of its shortest derivation, which no circle has: the shortest ways over grants.
"""

import tailrace as tr
from tailrace import graphs

GRANTS = [
    ("+", "ann", "editors"), ("+", "editors", "staff"), ("+", "staff", "editors"), ("+", "staff", "wiki"),
    ("+", "ben", "staff"), ("-", "ann", "editors"), ("+", "ann", "wiki"), ("-", "staff", "wiki"),
]  # fmt: skip


def reachable(grants: tr.DataStream, who: list[str]) -> tr.DataStream:
    """Changes ("+" or "-", x, y) of the facts reachable(x, y), for each x in `who`. A fact that gets another derivation
    goes and comes again at once."""
    ways = graphs.shortest_paths(grants, who).filter(lambda way: way[1] != way[2])
    return ways.map(lambda way: (way[0], way[2], way[1]))


if __name__ == "__main__":
    env = tr.Environment(parallelism=1)
    facts = reachable(env.from_collection(GRANTS), ["ann", "ben"]).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    print(*facts.result(), sep="\n")
