"""Programs with broadcast state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import tailrace as tr

KEYS = 7


class Pairs(tr.BroadcastProcessFunction):
    """Each key with each rule, once: at the first record of the key, or when the rule comes."""

    rules = tr.BroadcastState(int, int)
    known = tr.ValueState(bool, default=False)

    def process(self, value: int, ctx: tr.Context) -> Iterator[Any]:
        if not self.known.value:
            self.known.value = True
            for rule in self.rules:
                yield "pair", ctx.key, rule

    def process_broadcast(self, value: int, ctx: tr.Context) -> Iterator[Any]:
        self.rules[value] = len(self.rules)
        for key in ctx.keys(self.known):
            yield "pair", key, value


def ruled(env: tr.Environment, n: int, rate: float | None) -> tr.DataStream:
    """Records by key, and rules that come from all subtasks, of which each subtask has the same, in one order."""
    records = env.from_source(tr.sources.Sequence(0, n, rate=rate))
    rules = env.from_source(tr.sources.Sequence(0, n // 4, rate=None if rate is None else rate / 4))
    sent = rules.rebalance().map(lambda rule: rule)
    return records.key_by(lambda i: i % KEYS).connect(sent.broadcast()).process(Pairs())


def _ruled(n: int) -> Counter[Any]:
    return Counter(("pair", key, rule) for key in range(min(n, KEYS)) for rule in range(n // 4))
