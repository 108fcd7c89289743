"""One rule for changes in place: what a state gives as its value, and what is in its list or map, is the state. What is a
copy refuses changes."""

import copy
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tailrace as tr
from tailrace.state.backend import Backend
from tailrace.state.memory_backend import MemoryBackend
from tailrace.state.views import ListView, MapView
from tailrace.storage.disk_backend import DiskBackend
from tailrace.testing.backends import Files


class Holder:
    current_key: Any = 0


class Bags:
    """A bag of each kind, changed in place."""

    bag: Any
    nested: Any
    rows: Any
    shelves: Any
    merged: Any

    def act(self, act: str, item: int) -> None:
        if act == "bag":
            self.bag.value.append(item)
        elif act == "nested":
            self.nested.value[0].append(item)
            self.nested.value[1][item] = [item]
        elif act == "row":
            self.rows.append([item])
        elif act == "in rows":
            for row in self.rows:
                row.append(item)
        elif act == "in a row" and len(self.rows):
            self.rows[0].append(item)
            self.rows.value[-1].append(item)
        elif act == "shelf":
            self.shelves[item] = [*self.shelves.get(item, []), item]
        elif act == "on a shelf":
            for shelf in self.shelves.values():
                shelf.append(item)
            if item in self.shelves:
                self.shelves[item].append(item)
                self.shelves.value[item].append(item)
        elif act == "merged":
            self.merged.add([item])
            self.merged.value.append(item)

    def seen(self) -> Any:
        rows, shelves = list(self.rows.value), dict(self.shelves.value)
        return pickle.loads(pickle.dumps((self.bag.value, self.nested.value, rows, shelves, self.merged.value)))


class KeptBags(Bags):
    """Bags in the state of a key."""

    def __init__(self, backend: Backend) -> None:
        self.holder = Holder()
        states: dict[str, Any] = {
            "bag": tr.ValueState(list, default=[]),
            "nested": tr.ValueState(object, default=([], {})),
            "rows": tr.ListState(list),
            "shelves": tr.MapState(int, list),
            "merged": tr.ReducingState(list, reduce=lambda a, b: a + b),
        }
        for name, state in states.items():
            state.__set_name__(KeptBags, name)
            setattr(self, name, state.bind(backend, self.holder))

    def of(self, key: int) -> Bags:
        self.holder.current_key = key
        return self


class Value:
    """A value by the name that states have for it."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def add(self, item: list[int]) -> None:
        self.value = [*(self.value or []), *item]


class Items(list[Any]):
    @property
    def value(self) -> list[Any]:
        return self


class Entries(dict[Any, Any]):
    @property
    def value(self) -> dict[Any, Any]:
        return self


class PlainBags(Bags):
    """Bags of a key in plain Python."""

    def __init__(self) -> None:
        self.bag, self.nested, self.merged = Value([]), Value(([], {})), Value(None)
        self.rows, self.shelves = Items(), Entries()


def in_memory(folder: Path) -> Backend:
    return MemoryBackend()


def on_disk(folder: Path) -> Backend:
    return DiskBackend(folder / "db", uid="u", top_entries=3, cache_entries=2)


KINDS: dict[str, Callable[[Path], Backend]] = {"memory": in_memory, "disk": on_disk}
IN_PLACE = ("bag", "nested", "row", "in rows", "in a row", "shelf", "on a shelf", "merged")
ACTS = st.lists(
    st.tuples(
        st.sampled_from([*IN_PLACE, *IN_PLACE, "relieve", "checkpoint", "restore"]),
        st.integers(0, 5),
        st.integers(0, 2),
    ),
    max_size=60,
)


@pytest.mark.parametrize("kind", KINDS)
@given(acts=ACTS)
@settings(max_examples=60, deadline=None)
def test_what_was_changed_in_place_is_changed_wherever_the_state_lies(
    kind: str, acts: list[tuple[str, int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    def fresh() -> tuple[Backend, KeptBags]:
        backend = KINDS[kind](tmp_path_factory.mktemp("state"))
        return backend, KeptBags(backend)

    (backend, bags), files, number = fresh(), Files(), 0
    plain = {key: PlainBags() for key in range(6)}
    for act, key, item in acts:
        if act == "relieve":
            backend.relieve()
        elif act in ("checkpoint", "restore"):
            number += 1
            files.take(backend, number)
            files.confirm(backend, number)
            if act == "restore":
                backend.close()
                backend, bags = fresh()
                files.restore(backend, number, True)
                backend.end_restore(True)
        else:
            bags.of(key).act(act, item)
            plain[key].act(act, item)
        assert bags.of(key).seen() == plain[key].seen()
    assert [bags.of(key).seen() for key in plain] == [one.seen() for one in plain.values()]
    backend.close()


# Views.


def handles() -> Any:
    class Both:
        items = tr.ListState(int)
        entries = tr.MapState(str, int)

    made = Both()
    backend, holder = MemoryBackend(), Holder()
    made.items = Both.items.bind(backend, holder)
    made.entries = Both.entries.bind(backend, holder)
    made.items.update([3, 1, 2])
    made.entries.update({"a": 1, "b": 2})
    return made


def _add(view: Any) -> None:
    view += [1]


def _times(view: Any) -> None:
    view *= 2


def _or(view: Any) -> None:
    view |= {"c": 3}


LIST_CHANGES: dict[str, Callable[[Any], Any]] = {
    "append": lambda v: v.append(4),
    "extend": lambda v: v.extend([4]),
    "insert": lambda v: v.insert(0, 4),
    "remove": lambda v: v.remove(3),
    "pop": lambda v: v.pop(),
    "clear": lambda v: v.clear(),
    "sort": lambda v: v.sort(key=abs, reverse=True),
    "reverse": lambda v: v.reverse(),
    "__setitem__": lambda v: v.__setitem__(0, 4),
    "__delitem__": lambda v: v.__delitem__(0),
    "__iadd__": _add,
    "__imul__": _times,
}
MAP_CHANGES: dict[str, Callable[[Any], Any]] = {
    "__setitem__": lambda v: v.__setitem__("c", 3),
    "__delitem__": lambda v: v.__delitem__("a"),
    "pop": lambda v: v.pop("a"),
    "popitem": lambda v: v.popitem(),
    "clear": lambda v: v.clear(),
    "update": lambda v: v.update(c=3),
    "setdefault": lambda v: v.setdefault("c", 3),
    "__ior__": _or,
}


@pytest.mark.parametrize("change", LIST_CHANGES)
def test_the_view_of_a_list_refuses_what_would_be_lost(change: str) -> None:
    made = handles()
    for view in (made.items.value, made.items.get()):
        with pytest.raises(
            tr.StateAccessError, match=rf"here by {change}\) would be lost.*self\.name\.append.*list\(self"
        ):
            LIST_CHANGES[change](view)
    assert made.items.get() == [3, 1, 2]


@pytest.mark.parametrize("change", MAP_CHANGES)
def test_the_view_of_a_map_refuses_what_would_be_lost(change: str) -> None:
    made = handles()
    for view in (made.entries.value, made.entries.get()):
        with pytest.raises(
            tr.StateAccessError, match=rf"here by {change}\) would be lost.*self\.name\[key\].*dict\(self"
        ):
            MAP_CHANGES[change](view)
    assert made.entries.value == {"a": 1, "b": 2}


def test_no_way_to_change_a_list_or_a_dictionary_was_forgotten() -> None:
    """What a mutable sequence or mapping has and its frozen counterpart has not, changes it."""
    own = {"__class_getitem__", "__getitem__", "__reversed__", "copy", "fromkeys", "get", "items", "keys", "values"}
    more = {"__init__", "__new__", "__hash__", "__getattribute__", "__doc__", "__or__", "__ror__", "__sizeof__"}
    for changed, kind, frozen in ((LIST_CHANGES, list, tuple), (MAP_CHANGES, dict, frozenset)):
        assert set(changed) == set(vars(kind)) - set(vars(frozen)) - own - more, kind


def test_a_view_is_read_and_handed_on_as_a_list_or_a_dictionary() -> None:
    made = handles()
    items, entries = made.items.value, made.entries.value
    assert items == [3, 1, 2] and entries == {"a": 1, "b": 2} and isinstance(items, list) and isinstance(entries, dict)
    assert repr(items) == "[3, 1, 2]" and repr(entries) == "{'a': 1, 'b': 2}"
    assert json.dumps([items, entries]) == '[[3, 1, 2], {"a": 1, "b": 2}]'
    assert msgspec.json.decode(msgspec.json.encode([items, entries])) == [[3, 1, 2], {"a": 1, "b": 2}]
    assert pa.array([items]).to_pylist() == [[3, 1, 2]] and sorted(items) == [1, 2, 3]
    for made_of in (copy.copy, copy.deepcopy, lambda v: v.copy(), lambda v: pickle.loads(pickle.dumps(v))):
        assert type(made_of(items)) is list and type(made_of(entries)) is dict
    for plain in (items + [1], [1] + items, items[:2], items * 2):
        assert type(plain) is list
    assert type(entries | {}) is dict and type(items) is ListView and type(entries) is MapView


def test_what_a_function_emits_of_its_state_travels_into_columns() -> None:
    class Whole(tr.KeyedProcessFunction):
        items = tr.ListState(int)
        entries = tr.MapState(str, int)

        def process(self, value: int, ctx: tr.Context) -> Any:
            self.items.append(value)
            self.entries[str(value)] = value
            yield self.items.value, self.entries.value

    for copies in (False, True):
        env = tr.Environment(parallelism=1, copy_records=copies)
        made = env.from_collection([1, 2]).key_by(lambda v: 0).process(Whole())
        rows = made.sink_to(tr.sinks.Collect())
        columns = made.to_columns("items array<long>, entries map<string, long>").to_rows().sink_to(tr.sinks.Collect())
        tr.testing.run(env)
        assert rows.result() == [([1], {"1": 1}), ([1, 2], {"1": 1, "2": 2})]
        assert [row.items for row in columns.result()] == [[1], [1, 2]]
        assert [dict(row.entries) for row in columns.result()] == [{"1": 1}, {"1": 1, "2": 2}]
