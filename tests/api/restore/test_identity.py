"""The identity of a dataflow: which changes make another one of it, in the eyes of the mark that a finished job has left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tailrace as tr
from tailrace.api.restore.identity import dataflow_of
from tailrace.spark.start.start_checkpoint import find_origin
from tailrace.state.end_mark import FINISHED, Ending, OperatorIdentity
from tailrace.storage.store import Store


class Count(tr.KeyedProcessFunction):
    count = tr.ValueState(int)

    def process(self, record: int, ctx: Any) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        yield self.count.value()


class Seen(tr.ProcessFunction):
    seen = tr.OperatorState(list)

    def process(self, record: int, ctx: Any) -> Any:
        yield record


class Lines(tr.sinks.TextFiles):
    pass


def written(folder: Path, uids: bool = True, **change: Any) -> tr.Environment:
    """A dataflow; `change` has the differences from the first one."""
    env = tr.Environment(
        parallelism=change.get("parallelism", 1), checkpoint=tr.CheckpointConfig(folder / "checkpoints")
    )

    def uid(name: str) -> dict[str, Any]:
        return {"uid": change.get(name, name)} if uids else {}

    numbers = env.from_source(change.get("source", tr.sources.Sequence(0, change.get("end", 9))), **uid("numbers"))
    for _ in range(change.get("maps", 0)):
        numbers = numbers.map(lambda n: n + 1)
    counted = numbers.key_by(lambda n: n % 3).process(Count(), **uid("count"), name=change.get("name", "count"))
    for _ in range(change.get("remembering", 0)):
        counted = counted.process(Seen(), **uid("seen"))
    out = str(folder / change.get("out", "out"))
    counted.sink_to(change.get("sink", tr.sinks.TextFiles)(out), **uid("lines"))
    if "more" in change:
        numbers.map(str).sink_to(tr.sinks.TextFiles(str(folder / change["more"])), **uid("more lines"))
    return env


def start(folder: Path, env: tr.Environment, requested: str, start_again: bool = False) -> Any:
    return find_origin(env, env._plan(env._pending()), "job", requested, False, start_again)


def finished(folder: Path, dataflow: tuple[OperatorIdentity, ...]) -> None:
    store = Store(str(folder / "checkpoints"), "job")
    store.mark_ended(store.claim("run"), Ending("job", "run", FINISHED, 0, 3, dataflow=list(dataflow)))


def ran(env: tr.Environment) -> tuple[OperatorIdentity, ...]:
    return dataflow_of(env._plan(env._pending()).graph)


def refused(call: Callable[[], Any]) -> str:
    with pytest.raises(tr.IncompatibleState, match="ran another dataflow than this one") as raised:
        call()
    return str(raised.value)


@pytest.mark.parametrize("requested", ["latest", "latest-or-new"])
@pytest.mark.parametrize("uids", [True, False], ids=["uids", "derived"])
@pytest.mark.parametrize(
    "change", [{}, {"maps": 1}, {"parallelism": 2}, {"name": "counts"}, {"end": 12}], ids=lambda change: str(change)
)
def test_a_dataflow_of_the_same_operators_has_finished(
    tmp_path: Path, change: dict[str, Any], uids: bool, requested: str
) -> None:
    finished(tmp_path, ran(written(tmp_path, uids)))
    with pytest.raises(tr.JobAlreadyFinished):
        start(tmp_path, written(tmp_path, uids, **change), requested)


def test_a_uid_that_was_given_says_who_it_is_wherever_it_writes(tmp_path: Path) -> None:
    finished(tmp_path, ran(written(tmp_path)))
    with pytest.raises(tr.JobAlreadyFinished):
        start(tmp_path, written(tmp_path, out="elsewhere"), "latest")


@pytest.mark.parametrize("requested", ["latest", "latest-or-new"])
@pytest.mark.parametrize(
    ("uids", "change", "lines"),
    [
        (True, {"lines": "rows"}, ["had 'sink: text files' (uid 'lines')", "had no 'sink: text files' (uid 'rows')"]),
        (True, {"numbers": "others"}, ["(uid 'numbers')", "(uid 'others')"]),
        (True, {"count": "sum"}, ["had 'count' (uid 'count')", "had no 'count' (uid 'sum')"]),
        (True, {"remembering": 1}, ["had no 'process", "(uid 'seen')"]),
        (True, {"more": "more"}, ["had no 'sink: text files' (uid 'more lines')"]),
        (False, {"out": "elsewhere"}, ["/out)", "/elsewhere)"]),
        (False, {"more": "more"}, ["/more)"]),
        (False, {"sink": Lines}, ["(sink, TextFiles, ", "(sink, Lines, "]),
        (False, {"source": tr.sources.TextFiles("/in")}, ["(source, Sequence)", "(source, TextFiles)"]),
    ],
    ids=lambda one: "-".join(one) if isinstance(one, dict) else None,
)
def test_another_dataflow_of_that_name_is_refused_and_both_are_reported_apart(
    tmp_path: Path, uids: bool, change: dict[str, Any], lines: list[str], requested: str
) -> None:
    """A dataflow of that name has never run: to take it for the finished one would be an end with nothing done."""
    finished(tmp_path, ran(written(tmp_path, uids)))
    raised = refused(lambda: start(tmp_path, written(tmp_path, uids, **change), requested))
    assert all(one in raised for one in lines), raised
    assert "another name, env.execute(name)" in raised and "--if-finished start-again" in raised
    assert start(tmp_path, written(tmp_path, uids, **change), requested, start_again=True) is None
    back = refused(lambda: written(tmp_path, uids, **change).check_restore(requested, name="job"))
    assert back == raised, "the dry run says the same"


def test_one_that_lacks_what_has_run_is_another_one(tmp_path: Path) -> None:
    finished(tmp_path, ran(written(tmp_path, more="more")))
    raised = refused(lambda: start(tmp_path, written(tmp_path), "latest"))
    assert raised.count("\n  - ") == 1 and "(uid 'more lines'), which is not in this dataflow" in raised


def test_two_alike_are_not_one(tmp_path: Path) -> None:
    def env(copies: int) -> tr.Environment:
        made = tr.Environment(checkpoint=tr.CheckpointConfig(tmp_path / "checkpoints"))
        for _ in range(copies):
            made.from_source(tr.sources.Sequence(0, 3)).sink_to(tr.sinks.Callback(print))
        return made

    finished(tmp_path, ran(env(2)))
    with pytest.raises(tr.JobAlreadyFinished):
        start(tmp_path, env(2), "latest")
    for copies in (1, 3):
        refused(lambda: start(tmp_path, env(copies), "latest"))  # noqa: B023 - called at once


def test_a_mark_of_an_older_version_says_nothing_of_it(tmp_path: Path) -> None:
    finished(tmp_path, ())
    with pytest.raises(tr.JobAlreadyFinished):
        start(tmp_path, written(tmp_path, lines="rows"), "latest")
