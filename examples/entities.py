"""Who is who: records of persons, with errors of typing, become entities while they arrive, and while some are withdrawn.

    python examples/entities.py --persons 2000

Records that begin alike are compared (*blocking*), those that are much alike are joined, and entities are the connected
components. An entity has the number of its oldest record: where two merge, the older number stays, and where one falls
apart, the part with its oldest record keeps it.
"""

import argparse
import random
from collections.abc import Iterator
from difflib import SequenceMatcher
from typing import Any

import tailrace as tr
from tailrace import graphs

ALIKE = 0.85


class Alike(tr.KeyedProcessFunction):
    """Changes of edges between the records of one block that are alike. Each record has an edge with itself, too. An event
    is ("+" or "-", number, text)."""

    texts = tr.MapState(int, str)

    def process(self, event: Any, ctx: tr.Context) -> Iterator[tuple[str, int, int]]:
        op, number, text = event
        if op == "-":
            self.texts.remove(number)
        yield op, number, number
        for other, its in self.texts.items():
            if SequenceMatcher(None, *sorted((text, its))).ratio() >= ALIKE:
                yield op, *sorted((number, other))
        if op == "+":
            self.texts[number] = text


def entities(events: tr.DataStream) -> tr.DataStream:
    """Changes ("+" or "-", number of a record, number of its entity)."""
    return graphs.connected_components(events.key_by(lambda event: event[2][:3]).process(Alike(), uid="alike"))


def persons(count: int, seed: int = 7) -> list[tuple[str, int, str]]:
    """Events of random persons, most of whom come several times; one record in ten is withdrawn."""
    draw, events = random.Random(seed), list[tuple[str, int, str]]()
    for _ in range(count):
        name = "".join(draw.choice("bdfgklmnprstv") + draw.choice("aeiou") for _ in range(6)) + str(
            draw.randint(1930, 2010)
        )
        for _ in range(draw.randint(1, 4)):
            at = draw.randrange(3, len(name))
            events.append(("+", len(events), name[:at] + draw.choice("aeiou") + name[at + 1 :]))
    draw.shuffle(events)
    events = [("+", number, text) for number, (_, _, text) in enumerate(events)]
    return events + [("-", number, text) for _, number, text in draw.sample(events, len(events) // 10)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Entities of records that come and go.")
    parser.add_argument("--persons", type=int, default=2000)
    env = tr.Environment(progress=True)
    found = entities(env.from_collection(persons(parser.parse_args().persons), parallelism=1))
    changes = found.to_dataframe("op string, record long, entity long")
    last = changes.groupBy("record", "entity").agg({"op": "count"}).where("`count(op)` % 2 = 1")
    last.groupBy("entity").count().groupBy("count").count().orderBy("count").show()
