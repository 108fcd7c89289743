"""Windows and joins that go on from a checkpoint with other settings: with a result that is right, or not at all."""

from __future__ import annotations

from ast import literal_eval
from collections import Counter
from typing import Any

import pytest

import tailrace as tr
from search.stories import Story
from tailrace.coordinator.job.restarts import Never
from tailrace.errors import IncompatibleState

N = 60
Options = dict[str, Any]


def keyed(env: tr.Environment, name: str, count: int) -> tr.KeyedStream:
    source = tr.sources.Generator(lambda i: (name, i), rate=1_000.0, count=count)
    stream = env.from_source(source, uid=f"source {name}", parallelism=1).assign_timestamps(lambda r: r[1], uid=name)
    return stream.key_by(lambda r: 0)


def counts(windows: Any, **options: Any) -> Any:
    def build(env: tr.Environment) -> tr.DataStream:
        return (
            keyed(env, "a", N)
            .window(windows, **options)
            .count(uid="windows")
            .map(lambda row: tuple(row)[1:], uid="tuples")
        )

    return build


def largest(windows: Any) -> Any:
    def build(env: tr.Environment) -> tr.DataStream:
        found = keyed(env, "a", N).window(windows).aggregate(tr.Max(lambda r: r[1]), uid="windows")
        return found.map(lambda row: tuple(row)[1:], uid="tuples")

    return build


def versions(**options: Any) -> Any:
    """Numbers of records up to 60, each with whether the only version, of time 0, counts for it."""

    def build(env: tr.Environment) -> tr.DataStream:
        joined = keyed(env, "a", N).join_as_of(keyed(env, "b", 1), how="left", uid="join", **options)
        return joined.map(lambda pair: (pair[0][1], pair[1] is not None), uid="numbers")

    return build


def verb(of: Any) -> Any:
    """Texts of what a verb of a keyed stream gives."""

    def build(env: tr.Environment) -> tr.DataStream:
        return of(keyed(env, "a", N)).map(repr, uid="texts")

    return build


def top(n: int, ascending: bool = False, **windows: Any) -> Any:
    def of(stream: Any) -> Any:
        chosen = stream.window(**windows) if windows else stream
        return chosen.top(n, by=lambda r: r[1], ascending=ascending, uid="top")

    return verb(of)


def last(within: float | None) -> Any:
    return verb(lambda stream: stream.drop_duplicates(within, keep="last", uid="last"))


def gone_on(story: Story, before: Any, after: Any) -> list[Any]:
    """What two jobs publish, of which the second goes on where the first is left in the middle."""
    world = story.simulation(before, restarts=Never)
    world.start()
    while story.files.commits < 12:
        assert not world.coordinator.status.final, world.coordinator.cause
        world.turn()
    story.finish(story.again(after, parallelism=3, restarts=Never))
    return story.ledger.book.records()


EACH_TEN = {"early": tr.Every(records=10)}
REFUSED: dict[str, tuple[Any, Any]] = {
    "discarding": (counts(tr.Global(), **EACH_TEN), counts(tr.Global(), **EACH_TEN, discarding=True)),
    "not discarding": (counts(tr.Global(), **EACH_TEN, discarding=True), counts(tr.Global(), **EACH_TEN)),
    "counted windows": (counts(tr.Global()), counts(tr.CountWindow(4))),
    "what is left": (counts(tr.CountWindow(100, partial_at_end=False)), counts(tr.CountWindow(100))),
    "another aggregate": (counts(tr.CountWindow(100)), largest(tr.CountWindow(100))),
    "a second more": (counts(tr.Tumbling(30 * 86_400)), counts(tr.Tumbling(30 * 86_400 + 1))),
    "a shorter top": (top(5), top(3)),
    "another top": (top(5), top(5, ascending=True)),
    "a longer top of windows": (top(3, windows=tr.Tumbling(100)), top(5, windows=tr.Tumbling(100))),
    "a shorter span": (last(40), last(30)),
    "no span": (last(40), last(None)),
    "a longer gap": (counts(tr.Session(30 * 86_400)), counts(tr.Session(30 * 86_400 + 1))),
}


@pytest.mark.parametrize("change", REFUSED)
def test_windows_of_another_state_are_refused(story: Story, change: str) -> None:
    with pytest.raises(IncompatibleState, match="the checkpoint holds the state of"):
        gone_on(story, *REFUSED[change])


@pytest.mark.parametrize("before", [5, 3, 2])
def test_a_lag_finds_what_was_there_for_another_number(story: Story, before: int) -> None:
    first, then = [verb(lambda stream, n=n: stream.lag(n, of=lambda r: r[1], uid="lag")) for n in (before, 3)]
    found = [literal_eval(text) for text in gone_on(story, first, then)]
    assert sorted(number for (_, number), _ in found) == [*range(N)]
    held = [(number, earlier) for (_, number), earlier in found if number > 14]
    assert held == [(number, number - 3) for number, _ in held]


def test_windows_of_fewer_records_end_though_more_were_there(story: Story) -> None:
    found = [count for (count,) in gone_on(story, counts(tr.CountWindow(50)), counts(tr.CountWindow(4)))]
    assert sum(found) == N
    assert sorted(found)[-2] <= 4 < max(found) < 50


def test_a_window_gets_the_timeout_that_it_did_not_have(story: Story) -> None:
    timeout = tr.CountWindow(1_000, timeout=0.005)
    found = [count for (count,) in gone_on(story, counts(tr.CountWindow(1_000)), counts(timeout))]
    assert sum(found) == N
    assert len(found) > 3


def test_windows_go_on_without_early_results_by_the_clock(story: Story) -> None:
    early = counts(tr.Global(), early=tr.Every(seconds=0.005))
    found = gone_on(story, early, counts(tr.Global()))
    assert found[-1] == (N,)
    assert {labels[0] for _, *labels in found[:-1]} <= {"early"}


def with_lateness(seconds: float, form: str) -> Any:
    """Counts of windows of ten seconds, and the late ones of the records, each third of which is a minute old."""

    def build(env: tr.Environment) -> tr.DataStream:
        at = lambda i: (i % 2, 4 * i - 60 * (i % 3 == 2), i)  # noqa: E731
        source = env.from_source(tr.sources.Generator(at, rate=1_000.0, count=N), uid="source", parallelism=1)
        columns = source.to_columns("k long, at long, i long", uid="columns")
        stream = columns if form == "columns" else columns.to_rows()
        keyed = stream.assign_timestamps("at", uid="times").key_by("k")
        counted = keyed.window(tr.Tumbling(10), allowed_lateness=seconds).count(uid="windows")
        late = counted.side_output("late").map(lambda row: ("late", row.i), uid="late")
        return counted.map(lambda row: tuple(row)[:2] + tuple(row)[3:], uid="tuples").union(late)

    return build


class Results(tr.WindowFunction):
    """Start of each window, and the number of its results so far."""

    so_far = tr.ValueState(int, default=0)

    def process(self, key: Any, window: Any, records: list[Any], ctx: tr.Context) -> Any:
        self.so_far.value += 1
        yield window.start, self.so_far.value


def results(windows: Any, seconds: float) -> Any:
    def build(env: tr.Environment) -> tr.DataStream:
        source = tr.sources.Generator(lambda i: (i, 4.0 * i - 60 * (i % 3 == 2)), rate=1_000.0, count=N)
        timed = env.from_source(source, uid="source", parallelism=1).assign_timestamps(lambda r: r[1], uid="times")
        found = timed.key_by(lambda r: 0).window(windows, late=tr.Every(records=1), allowed_lateness=seconds)
        return found.process(Results(), uid="results")

    return build


@pytest.mark.parametrize("windows", [tr.Tumbling(20), tr.Sliding(40, 20), tr.Tumbling("1 day", zone="Asia/Kolkata")])
def test_state_of_a_window_stays_as_long_as_its_results_may_come(story: Story, windows: Any) -> None:
    """The timer of the window was set in a job with less allowed lateness."""
    found = gone_on(story, results(windows, 30), results(windows, 300))
    assert Counter(found) == Counter(
        (start, n) for start, most in dict(sorted(found)).items() for n in range(1, most + 1)
    )


@pytest.mark.parametrize("form", ["rows", "columns"])
def test_a_window_that_is_gone_stays_gone_with_a_longer_lateness(story: Story, form: str) -> None:
    """The window would come back with its late records alone, and the result with all of them would be replaced."""
    found = gone_on(story, with_lateness(2, form), with_lateness(100, form))
    late = [one[1] for one in found if one[0] == "late"]
    last: dict[Any, int] = {}
    for key, start, count in (one for one in found if one[0] != "late"):
        assert count > last.get((key, start), 0)
        last[key, start] = count
    assert late and sum(last.values()) + len(late) == N


@pytest.mark.parametrize(
    ("before", "after", "last"),
    [({}, {"keep": 5}, 5), ({"keep": 50}, {"keep": 5}, 5), ({"keep": 15}, {"keep": 45}, 45), ({"keep": 50}, {}, N)],
)
def test_versions_count_for_as_long_as_the_job_has_it(story: Story, before: Options, after: Options, last: int) -> None:
    found = gone_on(story, versions(**before), versions(**after))
    assert sorted(number for number, _ in found) == [*range(N)]
    # Results that the first job has published stay.
    assert [known for number, known in sorted(found) if number > 14] == [number <= last for number in range(15, N)]


@pytest.mark.parametrize("until", [None, 30, 50, 1_000])
def test_records_that_wait_for_versions_come_out_when_they_are_loaded_at_another_time(
    story: Story, until: int | None
) -> None:
    found = gone_on(story, versions(load_until=40), versions(load_until=until))
    assert Counter(found) == Counter({(number, True): 1 for number in range(N)})
