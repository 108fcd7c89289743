"""A dry run compares a checkpoint with a changed dataflow, and starts nothing."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.statedata.fitting import restore_check
from tailrace.statedata.stored import StoredCheckpoint


class Total(tr.KeyedProcessFunction):
    total = tr.ValueState(int, default=0)
    items = tr.ListState(int, encoding="msgspec")

    def process(self, value: int, ctx: Any) -> Any:
        self.total.value += value
        self.items.append(value)
        yield self.total.value


class Numbered(tr.ProcessFunction):
    seen = tr.OperatorState(int, default=0)

    def process(self, value: int, ctx: Any) -> Any:
        self.seen.value += 1
        yield value


def dataflow(
    env: tr.Environment, total: Any = Total, numbered: Any = Numbered, uid: str = "totals", more: bool = False
) -> None:
    numbers = env.from_source(tr.sources.Sequence(0, 3_000), uid="numbers").process(numbered(), uid="numbered")
    totals = numbers.key_by(lambda n: n % 4).process(total(), uid=uid)
    if more:
        totals = totals.key_by(lambda n: n % 2).reduce(max, uid="largest")
    totals.sink_to(tr.sinks.Collect(), uid="out")


@pytest.fixture(scope="module")
def stored() -> StoredCheckpoint:
    from tests.statedata.conftest import taken

    return taken(dataflow)


def check(stored: StoredCheckpoint, parallelism: int = 2, allowed: Any = False, groups: int = 16, **how: Any) -> Any:
    env = tr.Environment(parallelism=parallelism, max_parallelism=groups)
    dataflow(env, **how)
    graph = env._plan(env._pending()).graph
    return restore_check(stored, graph.nodes, graph.max_parallelism, allowed)


def test_the_same_dataflow_goes_on_with_everything(stored: StoredCheckpoint) -> None:
    found = check(stored)
    assert found.fits and found.misfits == found.fresh == found.dropped == ()
    assert (
        "operator 'process: Total' (uid 'totals') with 'total' (value, 4 entries), 'items' (list, 4 entries)"
        in found.restored
    )
    assert str(found).startswith("memory:/1/") and "fits the dataflow\ngoes on:\n  - operator" in str(found)


def test_what_is_new_begins_anew(stored: StoredCheckpoint) -> None:
    class More(Total):
        largest = tr.ValueState(int)

    found = check(stored, total=More, more=True)
    assert found.fits
    assert found.fresh == (
        "state 'largest' (value) of operator 'process: More' (uid 'totals')",
        "operator 'reduce: max' (uid 'largest'): the checkpoint has nothing of it",
    )


def test_what_a_start_would_refuse_is_reported_in_the_same_words(stored: StoredCheckpoint) -> None:
    found = check(stored, uid="sums", groups=32)
    assert not found.fits and len(found.misfits) == 2
    assert "use Environment(max_parallelism=16)" in found.misfits[0]
    assert (
        "(uid 'totals') had state and is not in the dataflow any more; it held total (value), items (list)"
        in (found.misfits[1])
    )


def test_what_may_be_left_behind_is_reported_as_such(stored: StoredCheckpoint) -> None:
    found = check(stored, uid="sums", allowed=["totals"])
    assert found.fits and len(found.dropped) == 1 and "(uid 'totals') had state" in found.dropped[0]


def test_values_that_cannot_be_read_as_the_new_type_are_found(stored: StoredCheckpoint) -> None:
    """The start refuses them, and does not wait for workers that find it at the first block."""

    class Item(msgspec.Struct):
        number: int

    class Changed(Total):
        items = tr.ListState(Item)

    found = check(stored, total=Changed)
    assert len(found.misfits) == 1
    assert "state 'items' was declared as int and is declared as " in found.misfits[0]


def test_state_without_a_key_that_cannot_be_dealt_out_is_found(stored: StoredCheckpoint) -> None:
    from tests.statedata.conftest import taken

    midway = taken(dataflow, number=1)
    assert check(midway, parallelism=2).fits
    assert check(stored, parallelism=3).fits, "all had finished: nobody uses it any more"
    found = check(midway, parallelism=3)
    assert len(found.misfits) == 1
    assert "operator state 'seen' (int) was saved at parallelism 2 and cannot be dealt out to 3" in found.misfits[0]


def test_a_dry_run_leaves_functions_and_checkpoint_alone(stored: StoredCheckpoint) -> None:
    files: Any = stored.store.folder
    before = {name: bytes(data) for name, data in files.contents.items()}
    made: list[Numbered] = []

    def numbered() -> Numbered:
        made.append(Numbered())
        return made[-1]

    check(stored, numbered=numbered)
    assert "seen" not in vars(made[0]), "the dry run has bound the function's state"
    assert files.contents == before


def test_a_list_of_another_length_is_reported_by_a_dry_run_as_by_a_start(checkpoint_of: Any) -> None:
    def reading(source: tr.Source) -> Any:
        def build(env: tr.Environment) -> None:
            numbers = env.from_source(source, uid="numbers")
            numbers.key_by(lambda n: n % 4).process(Total(), uid="totals").sink_to(tr.sinks.Collect(), uid="out")

        return build

    stored = checkpoint_of(reading(tr.sources.Collection(range(3_000))), number=1)
    for source, message in (
        (tr.sources.Collection(range(3_000)), ""),
        (tr.sources.Collection(range(10)), "goes on with a list of 3000 records and this list has 10"),
        (tr.sources.Sequence(0, 3_000), "holds the state of Collection, and the operator has Sequence now"),
    ):
        env = tr.Environment(parallelism=2, max_parallelism=16)
        reading(source)(env)
        found = restore_check(stored, env._plan(env._pending()).graph.nodes, 16)
        assert found.fits if not message else message in found.misfits[0]
