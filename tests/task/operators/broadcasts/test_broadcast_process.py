"""Functions of a stream and a broadcast stream: who changes broadcast state, and what all keys give."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tailrace as tr
from tailrace.errors import UserCodeError
from tailrace.graph.graph import Node
from tailrace.graph.operators import BroadcastProcess
from tailrace.storage.disk_backend import DiskBackend
from tailrace.task.channels.services import Services
from tailrace.task.operators.broadcasts.process import BroadcastTask
from tailrace.task.operators.context import OperatorContext


class Alerts(tr.BroadcastProcessFunction):
    """Sums up amounts by key, and reports those above a limit: at each record, and at each new limit for all keys."""

    limits = tr.BroadcastState(str, int)
    total = tr.ValueState(int, default=0)
    seen = tr.ValueState(int)

    def process(self, value: Any, ctx: tr.Context) -> Iterator[Any]:
        self.total.value += value[1]
        over = [name for name, limit in self.limits.items() if self.total.value > limit]
        if over:
            yield ctx.key, over

    def process_broadcast(self, value: Any, ctx: tr.Context) -> Iterator[Any]:
        name, limit = value
        if limit is None:
            del self.limits[name]
            return
        self.limits[name] = limit
        for key in ctx.keys(self.total):
            if self.total.value > limit:
                self.seen.value = limit
                yield key, ctx.key, self.total.value


def first(value: Any) -> Any:
    return value[0]


def test_broadcast_records_change_the_state_that_the_others_read() -> None:
    h = tr.testing.harness(Alerts(), key=first)
    assert h.push(("a", 5)) == []
    assert h.push(("high", 4), input=2) == [("a", "a", 5)]
    assert h.push(("a", 1)) == [("a", ["high"])]
    assert (h.state("limits"), h.state("seen")) == ({"high": 4}, {"a": 4})
    h.push(("high", None), input=2)
    assert h.push(("a", 1)) == []


def test_all_keys_come_in_the_order_of_their_bytes_whatever_came_first_and_where_they_are(tmp_path: Path) -> None:
    found = []
    for backend in (None, lambda uid, subtask: DiskBackend(str(tmp_path), 128, uid, subtask)):
        for keys in (["b", "a", "c"], ["c", "b", "a"]):
            services = Services(random_factory=lambda seed: None, make_backend=backend)  # type: ignore[arg-type]
            node = Node(0, BroadcastProcess(Alerts(), first, "wait"), "op", "u", True, 1, "rows", ())
            task = BroadcastTask(node, OperatorContext("op", "u", 0, 1, 0, services))
            h = tr.testing.harness(Alerts(), key=first)
            h._task.close()
            one = type(h)(task, services)
            for key in keys:
                one.push((key, 5))
            found.append(one.push(("high", 1), input=2))
            one.close()
    assert found == [[(key, key, 5) for key in "abc"]] * 4


class Writes(tr.BroadcastProcessFunction):
    """Changes broadcast state where the record says."""

    rules = tr.BroadcastState(str, list)
    total = tr.ValueState(int, default=0)

    def change(self, value: Any) -> None:
        changes: dict[str, Any] = {
            "set": lambda: self.rules.put("x", [1]),
            "item": lambda: self.rules.__setitem__("x", [1]),
            "update": lambda: self.rules.update({"x": [1]}),
            "del": lambda: self.rules.__delitem__("a"),
            "remove": lambda: self.rules.remove("a"),
            "clear": lambda: self.rules.clear(),
            "value": lambda: setattr(self.rules, "value", {}),
        }
        changes[value[1]]()

    def process(self, value: Any, ctx: tr.Context) -> None:
        self.total.value += 1
        if value[1] == "in place":
            self.rules["a"].append(2)
        elif value[1] == "timer":
            ctx.set_timer(event_time=1)
        elif value[1] == "keys":
            sorted(ctx.keys(self.total))
        elif value[1]:
            self.change(value)

    def on_timer(self, timestamp: float, ctx: tr.Context) -> None:
        self.rules["x"] = []

    def process_broadcast(self, value: Any, ctx: tr.Context) -> None:
        if value == "inside":
            for _ in ctx.keys():  # noqa: SIM118
                self.rules["x"] = []
        elif value == "broken off":
            for _ in ctx.keys():  # noqa: SIM118
                break
            self.rules["y"] = []
        elif value == "other keys":
            sorted(ctx.keys(self.rules))
        else:
            self.rules["a"] = [1]


@pytest.fixture
def writes() -> Any:
    h = tr.testing.harness(Writes(), key=first)
    h.push("fill", input=2)
    h.push(("k", ""))
    return h


@pytest.mark.parametrize("change", ["set", "item", "update", "del", "remove", "clear", "value"])
def test_a_change_from_the_other_side_is_refused_where_it_is_made(writes: Any, change: str) -> None:
    with pytest.raises(
        UserCodeError, match=r"broadcast state 'rules' cannot be changed here: only process_broadcast may"
    ):
        writes.push(("k", change))
    assert writes.state("rules") == {"a": [1]}


def test_a_change_by_a_timer_is_refused(writes: Any) -> None:
    writes.push(("k", "timer"))
    with pytest.raises(UserCodeError, match="only process_broadcast may change it"):
        writes.advance_watermark(2)


def test_a_change_in_place_from_the_other_side_is_seen_in_debug_runs(writes: Any) -> None:
    with pytest.raises(UserCodeError, match="process has changed a value of broadcast state 'rules' in place"):
        writes.push(("k", "in place"))


def test_a_change_that_depends_on_keys_is_refused(writes: Any) -> None:
    with pytest.raises(UserCodeError, match=r"in a loop over ctx.keys\(...\) the change would depend on which keys"):
        writes.push("inside", input=2)


def test_behind_a_loop_that_was_left_changes_are_possible(writes: Any) -> None:
    writes.push("broken off", input=2)
    assert writes.state("rules") == {"a": [1], "y": []}


def test_all_keys_are_for_the_broadcast_side_and_for_keyed_state(writes: Any) -> None:
    with pytest.raises(UserCodeError, match=r"which only process_broadcast of a tr\.Broad"):
        writes.push(("k", "keys"))
    with pytest.raises(UserCodeError, match=r"ctx.keys\(...\) takes keyed states of the function"):
        writes.push("other keys", input=2)


class Latest(tr.BroadcastProcessFunction):
    rules = tr.BroadcastState(str, int)

    def process(self, value: Any, ctx: tr.Context) -> Iterator[Any]:
        yield value, self.rules.get(value, 0)

    def process_broadcast(self, value: Any, ctx: tr.Context) -> Iterator[Any]:
        self.rules[value[0]] = value[1]
        if value[0] == "keys":
            yield from ctx.keys()


def test_the_first_stream_needs_no_key() -> None:
    h = tr.testing.harness(Latest())
    h.push(("a", 2), input=2)
    assert [h.push("a"), h.push("b")] == [[("a", 2)], [("b", 0)]]
    with pytest.raises(UserCodeError, match=r"the first stream has no key; call key_by on it"):
        h.push(("keys", 1), input=2)


class Fails(Alerts):
    def process(self, value: Any, ctx: tr.Context) -> Iterator[Any]:
        self.total.value += 1
        if value[1] == "bad":
            raise ValueError("bad")
        yield value, len(self.limits)

    def process_broadcast(self, value: Any, ctx: tr.Context) -> Iterator[Any]:
        self.limits[value[0]] = value[1]
        yield value[0], 1 // value[1]


def test_a_failed_record_goes_aside_and_a_failed_broadcast_record_fails_the_job() -> None:
    h = tr.testing.harness(Fails(), key=first, on_error=tr.Aside("errors"))
    assert h.push(("x", 1), input=2) == [("x", 1)]
    assert [h.push(("a", "bad")), h.push(("a", "good"))] == [[], [(("a", "good"), 1)]]
    assert (h.state("total"), len(h.side("errors"))) == ({"a": 1}, 1)
    with pytest.raises(UserCodeError, match="ZeroDivisionError"):
        h.push(("y", 0), input=2)
