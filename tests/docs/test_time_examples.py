"""The guide's examples of event time, against plain Python and pandas over random data: in whatever order records come, in
batches of whatever size, and at any parallelism."""

import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tailrace as tr
from tests.docs.test_docs import blocks_of

GUIDE = Path(__file__).parents[2] / "docs" / "guide"
RANGE = 800
"""Quarters of a second: floats have these exactly."""
MINUTE = 240


def example(page: str, name: str) -> Any:
    """A class that a page defines."""
    module = types.ModuleType("example")
    for block in blocks_of((GUIDE / page).read_text()):
        defines = f"class {name}(" in block.text
        if block.language == "python" and (defines or block.text.startswith("import tailrace")):
            exec(compile(block.text, page, "exec"), vars(module))
        if defines:
            return getattr(module, name)
    raise AssertionError(f"{page} has no class {name}")


Calls = list[tuple[str, int]]
CALLS = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, RANGE)), max_size=25)


def ran(seed: int, parallelism: int, build: Callable[[tr.Environment], tr.DataStream]) -> list[Any]:
    env = tr.Environment(parallelism=parallelism)
    out = build(env).sink_to(tr.sinks.Collect())
    tr.testing.simulate(
        env, seed=seed, conditions=tr.testing.Conditions(budget=(1, 1 + seed % 4 * 8))
    ).await_termination()
    return list(out.result())


def by_key(env: tr.Environment, calls: Calls) -> Any:
    timed = env.from_collection(calls).assign_timestamps(lambda c: c[1] / 4, out_of_orderness=RANGE / 4)
    return timed.key_by(lambda c: c[0])


SILENCE, SESSIONS = example("state-and-timers.md", "Silence"), example("state-and-timers.md", "Sessions")
ENRICH, LOOKUP = example("enrichment.md", "Enrich"), example("enrichment.md", "Lookup")


def silences(calls: Calls) -> list[tuple[str, float]]:
    found = []
    for key in sorted({key for key, _ in calls}):
        times = sorted({at for one, at in calls if one == key})
        ends = [at for at, following in zip(times, [*times[1:], 10**9], strict=True) if following - at > MINUTE]
        found += [(key, (at + MINUTE) / 4) for at in ends]
    return found


@given(CALLS, st.integers(0, 7), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_each_silence_is_reported_once(calls: Calls, seed: int, parallelism: int) -> None:
    found = ran(seed, parallelism, lambda env: by_key(env, calls).process(SILENCE()))
    assert sorted(found) == silences(calls)


def sessions(calls: Calls) -> list[Any]:
    found: list[Any] = []
    for key in sorted({key for key, _ in calls}):
        times = pd.Series(sorted(at for one, at in calls if one == key))
        for _, session in times.groupby((times.diff() >= MINUTE).cumsum()):
            found.append((key, session.min() / 4, (session.max() + MINUTE) / 4, len(session)))
    return found


@given(CALLS, st.integers(0, 7), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_sessions_are_those_of_the_records_in_order_of_time(calls: Calls, seed: int, parallelism: int) -> None:
    found = ran(seed, parallelism, lambda env: by_key(env, calls).process(SESSIONS()))
    assert sorted(found) == sessions(calls)


PAYMENTS = st.lists(st.tuples(st.sampled_from(["ann", "bob", "cy"]), st.integers(0, RANGE)), max_size=15)
VERSIONS = st.lists(
    st.tuples(st.sampled_from(["ann", "bob"]), st.sampled_from(["DE", "FR", "IT"]), st.integers(0, RANGE)),
    max_size=10,
    unique_by=lambda version: (version[0], version[2]),
)


def as_of(payments: list[Any], versions: list[Any]) -> list[Any]:
    left = pd.DataFrame(payments, columns=["name", "at"]).astype({"name": str, "at": float}).sort_values("at")
    right = pd.DataFrame(versions, columns=["name", "country", "at"]).astype(
        {"name": str, "country": object, "at": float}
    )
    joined = pd.merge_asof(left, right.sort_values("at"), on="at", by="name")
    return sorted(
        (row.name_, int(row.at), row.country if isinstance(row.country, str) else "unknown")
        for row in joined.rename(columns={"name": "name_"}).itertuples(index=False)
    )


@given(PAYMENTS, VERSIONS, st.integers(0, 7), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_a_payment_gets_the_version_of_its_time(
    payments: list[Any], versions: list[Any], seed: int, parallelism: int
) -> None:
    def build(env: tr.Environment) -> tr.DataStream:
        paid = env.from_collection(payments).assign_timestamps(lambda p: p[1] / 4, RANGE / 4)
        moved = env.from_collection(versions).assign_timestamps(lambda c: c[2] / 4, RANGE / 4)
        made = paid.connect(moved).key_by(lambda p: p[0], lambda c: c[0]).process(ENRICH())
        late = made.side_output("late").map(lambda p: (*p, "late"))
        return made.union(made.side_output("unknown").map(lambda p: (*p, "unknown")), late)

    assert sorted(ran(seed, parallelism, build)) == as_of(payments, versions)


@given(PAYMENTS, st.integers(0, 7), st.integers(1, 3))
@settings(max_examples=30, deadline=None)
def test_a_payment_finds_the_only_version_that_there_is_and_keeps_its_time(
    payments: list[Any], seed: int, parallelism: int
) -> None:
    countries = [("ann", "DE"), ("bob", "FR"), ("cy", "IT")]

    def build(env: tr.Environment) -> tr.DataStream:
        paid = env.from_collection(payments).assign_timestamps(lambda p: p[1] / 4, RANGE / 4)
        made = paid.connect(env.from_collection(countries)).key_by(lambda p: p[0], lambda c: c[0]).process(LOOKUP())
        return made.process(lambda record, ctx: [(*record, ctx.timestamp)])

    expected = [(name, at, dict(countries)[name], at / 4) for name, at in payments]
    assert sorted(ran(seed, parallelism, build)) == sorted(expected)


def test_a_second_version_is_refused_where_there_is_to_be_one() -> None:
    h = tr.testing.harness(LOOKUP(), key=lambda p: p[0], key2=lambda c: c[0])
    h.push(("ann", "DE"), input=2)
    h.push(("ann", "DE"), input=2)
    with pytest.raises(tr.UserCodeError, match="a second version of ann: FR; use Enrich"):
        h.push(("ann", "FR"), input=2)
