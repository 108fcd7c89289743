"""What a `SavepointWriter` refuses before it writes anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tailrace as tr


class Count(tr.KeyedProcessFunction):
    count = tr.ValueState(int, default=0)
    other = tr.ValueState(int, encoding="msgspec")

    def process(self, value: int, ctx: Any) -> Any:
        self.count.value += 1
        self.other.value = 1
        yield value


class Frame:
    """What a DataFrame is to the writer before it is read."""

    def __init__(self, *columns: str) -> None:
        self.columns = list(columns)

    def mapInArrow(self) -> None: ...


KEYED = Frame("value", "key")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A checkpoint of a simulated job, as files."""
    from tests.statedata.conftest import taken
    from tests.statedata.test_writing import on_disk

    def build(env: tr.Environment) -> None:
        numbers = env.from_source(tr.sources.Sequence(0, 10), uid="numbers")
        numbers.key_by(lambda n: n % 2).process(Count(), uid="counts").sink_to(tr.sinks.Collect(), uid="out")

    return on_disk(taken(build), tmp_path_factory.mktemp("checkpoint"))


@pytest.mark.parametrize(
    ("args", "how", "message"),
    [
        (
            ("counts", Count, "count", Frame("key", "count")),
            {},
            "the columns key and value; this has the columns key, count",
        ),
        (("counts", Count, "count", [1]), {}, "the columns key and value; this has is a list"),
        (("counts", Count, "sum", KEYED), {}, "Count declares 'count', 'other'"),
        (("counts", int, "count", KEYED), {}, "expected the process function that declares the state"),
        (("", Count, "count", KEYED), {}, "an operator is named by its uid"),
        (("counts", Count, "count", KEYED), {"key": 5}, "key= is a function of what the column has, not 5"),
    ],
)
def test_what_cannot_be_put_is_refused(args: Any, how: Any, message: str) -> None:
    with pytest.raises(tr.ConfigError, match=message):
        tr.SavepointWriter().put(*args, **how)


def test_a_state_is_changed_once() -> None:
    writer = tr.SavepointWriter().put("counts", Count, "count", KEYED)
    with pytest.raises(tr.ConfigError, match="this state was changed before, and can be changed once"):
        writer.put("counts", Count(), "count", KEYED)


def test_without_a_checkpoint_nothing_can_be_changed(tmp_path: Path) -> None:
    for change in (lambda w: w.drop("counts"), lambda w: w.transform("counts", "count", lambda k, v: [])):
        with pytest.raises(tr.ConfigError, match="there is no checkpoint to change; begin with"):
            change(tr.SavepointWriter())
    with pytest.raises(tr.ConfigError, match="there is nothing to write"):
        tr.SavepointWriter().write(tmp_path / "new")
    with pytest.raises(tr.ConfigError, match="max_parallelism must be from 1"):
        tr.SavepointWriter(max_parallelism=0)


def test_changes_of_a_checkpoint_are_held_against_it(checkpoint: str) -> None:
    writer = tr.SavepointWriter.of(checkpoint)
    assert writer.max_parallelism == 16
    with pytest.raises(tr.CheckpointNotFound, match=r"no operator with uid 'cuonts'; it has the operators .*'counts'"):
        writer.drop("cuonts")
    with pytest.raises(tr.CheckpointNotFound, match=r"operator 'counts' has no state 'sum'; .*'count'"):
        writer.transform("counts", "sum", lambda key, value: [])
    with pytest.raises(tr.ConfigError, match="are encoded by msgspec; give function="):
        writer.transform("counts", "other", lambda key, value: [])
    writer.drop("counts", "count")
    with pytest.raises(tr.ConfigError, match="this state was changed before"):
        writer.transform("counts", "count", lambda key, value: [])
    with pytest.raises(tr.ConfigError, match="drop its other states one by one"):
        writer.drop("counts")
    writer.drop("numbers")
    with pytest.raises(tr.ConfigError, match="the operator was dropped before"):
        writer.put("numbers", Count, "count", KEYED)


def test_windows_cannot_be_changed(tmp_path: Path) -> None:
    """A window comes out when its timer fires, and that is of the key that it had: a window with another key would
    never come out, nor what was counted in it."""
    from tests.statedata.conftest import taken
    from tests.statedata.test_writing import on_disk

    def windows(env: tr.Environment) -> None:
        timed = env.from_source(tr.sources.Sequence(0, 3_000), uid="numbers").assign_timestamps(float, uid="times")
        summed = timed.key_by(lambda n: n % 5).window(tr.Tumbling(1_000)).reduce(max, uid="sums")
        summed.sink_to(tr.sinks.Collect(), uid="out")

    writer = tr.SavepointWriter.of(on_disk(taken(windows, number=1), tmp_path))
    with pytest.raises(tr.ConfigError, match="windows go on as they are, or not at all"):
        writer.transform("sums", "aggregate", lambda key, value: [(key + 5, value)])
    writer.drop("sums")


def test_a_checkpoint_that_is_not_there_is_reported_with_what_is(tmp_path: Path) -> None:
    with pytest.raises(tr.CheckpointNotFound, match="there is no checkpoint in"):
        tr.SavepointWriter.of(tmp_path / "nothing")


def test_more_key_groups_are_a_multiple(checkpoint: str) -> None:
    for wrong in (8, 17):
        with pytest.raises(
            tr.ConfigError, match=rf"max_parallelism={wrong}: .* has 16, .* a multiple of 16, up to 32768"
        ):
            tr.SavepointWriter.of(checkpoint, max_parallelism=wrong)
    for bad in (0, 65_536, "32", 32.0):
        with pytest.raises(tr.ConfigError, match="max_parallelism must be from 1 to 32768"):
            tr.SavepointWriter.of(checkpoint, max_parallelism=bad)  # type: ignore[arg-type]
    assert tr.SavepointWriter.of(checkpoint).max_parallelism == 16
    assert tr.SavepointWriter.of(checkpoint, max_parallelism=48).max_parallelism == 48
