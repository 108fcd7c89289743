"""Errors for a name or an option that does not exist."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

import tailrace as tr
from tailrace import spelling
from tailrace.api.checks import hints
from tailrace.api.functions import Context
from tailrace.api.streams import ConnectedStreams, DataStream, KeyedStream, WindowedStream
from tailrace.runtime.job import Job
from tailrace.spark.cluster.defaults import Defaults

TABLES: dict[str, tuple[dict[str, str], Any]] = {
    "tr": (hints.PUBLIC, tr),
    "sources": (hints.SOURCES, tr.sources),
    "sinks": (hints.SINKS, tr.sinks),
    "stream": (hints.VERBS, DataStream),
    "keyed": (hints.VERBS, KeyedStream),
    "windowed": (hints.WINDOWED, WindowedStream),
    "connected": (hints.CONNECTED, ConnectedStreams),
    "environment": (hints.ENVIRONMENT, tr.Environment),
    "context": (hints.CONTEXT, Context),
    "job": (hints.JOB, Job),
}


@pytest.mark.parametrize("which", TABLES)
def test_what_is_said_to_be_there_instead_is_there(which: str) -> None:
    table, owner = TABLES[which]
    env = tr.Environment()
    stream = env.from_collection([1])
    owners = (owner, env, stream, stream.key_by(id), stream.key_by(id).window(tr.Tumbling(1)), Job, Context)
    for name, instead in table.items():
        assert not (name in vars(owner) if inspect.ismodule(owner) else hasattr(owner, name)), name
        for path in re.findall(r"\btr((?:\.\w+)+)", instead):
            found: Any = tr
            for part in path[1:].split("."):
                found = getattr(found, part)
        for verb in re.findall(r"(?<![.\w])(?:env|stream|\))\.(\w+)\(|(?<![.\w])(\w+)\(", instead):
            assert any(hasattr(one, verb[0] or verb[1]) for one in owners), (name, verb)


def _windows(env: tr.Environment) -> Any:
    return env.from_collection([1]).key_by(abs).window(tr.Tumbling(5))


@pytest.mark.parametrize(
    ("write", "hint"),
    [
        (lambda env: tr.EventTimeSessionWindows(30), "use tr.Session"),
        (lambda env: tr.TumblingWindow(30), "use tr.Tumbling"),
        (lambda env: tr.SessionWindows, "use tr.Session"),
        (lambda env: tr.RocksDB, 'state_backend="disk"'),
        (lambda env: tr.Kinesis, "write a tr.Source or a tr.Sink"),
        (lambda env: tr.Kafka, "use tr.sources.Kafka or tr.sinks.Kafka"),
        (lambda env: tr.Print, "use tr.sinks.Print"),
        (lambda env: tr.simulate, "use tr.testing.simulate"),
        (lambda env: env.from_text("x"), r"use from_source\(tr.sources.TextFiles\(path\)\)"),
        (lambda env: env.from_collection([1]).key_by(id).max("x"), "there are tr.Min, tr.Max and tr.Mean"),
        (lambda env: _windows(env).apply(id), r"use process\(function\)"),
        (lambda env: _windows(env).allowed_lateness(5), r"window\(windows, allowed_lateness=...\)"),
        (lambda env: _windows(env).map(id), r"a verb of the stream that count\(\)"),
        (lambda env: _windows(env).agregate(id), "did you mean aggregate?"),
        (lambda env: env.from_collection([1]).connect(env.from_collection([2])).map(id), r"use process\(function\)"),
        (lambda env: tr.Enviroment(), "did you mean Environment?"),
        (lambda env: tr.sources.Kinesis("x"), "write a tr.Source"),
        (lambda env: tr.sources.KafkaSource("x"), "use tr.sources.Kafka"),
        (lambda env: tr.sources.TextFile("x"), "did you mean TextFiles?"),
        (lambda env: tr.sinks.Kinesis("x"), "write a tr.Sink"),
        (lambda env: tr.sinks.ParquetFiles("x"), "did you mean Parquet?"),
        (lambda env: env.run("x"), r"use execute\(name\)"),
        (lambda env: env.from_colection([1]), "did you mean from_collection?"),
        (lambda env: env.from_collection([1]).async_map(id), r"async_map: the stream has map_async\(f\) for this"),
        (lambda env: env.from_collection([1]).flat_mapp(id), "has no such verb; did you mean flat_map?"),
        (lambda env: env.from_collection([1]).xyz(id), "xyz: the stream has no such verb$"),
        (lambda env: object.__new__(Job).wait(), r"a job has no 'wait': use await_termination\(\)"),
    ],
)
def test_a_name_of_others_or_a_misspelt_one_is_reported_with_ours(write: Callable[[Any], object], hint: str) -> None:
    with pytest.raises(AttributeError, match=hint):
        write(tr.Environment(parallelism=1))


@pytest.mark.parametrize("name", ["_repr_html_", "__wrapped__", "_ipython_display_"])
def test_who_looks_for_what_may_be_there_finds_nothing(name: str) -> None:
    env = tr.Environment()
    stream = env.from_collection([1])
    both = stream.connect(env.from_collection([2]))
    assert not any(hasattr(one, name) for one in (env, stream, _windows(env), both, tr.sources, tr.sinks, tr))


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("output", "yield the value"),
        ("timer_service", r"use set_timer\(event_time"),
        ("watermarks", "did you mean watermark?"),
    ],
)
def test_a_context_says_what_it_has(name: str, hint: str) -> None:
    with pytest.raises(tr.UserCodeError, match=hint):
        tr.testing.harness(lambda value, ctx: getattr(ctx, name), key=abs).push(1)


def test_a_timer_of_a_function_that_has_no_on_timer_is_told_what_is_lacking() -> None:
    class Sets(tr.KeyedProcessFunction):
        def process(self, value: Any, ctx: tr.Context) -> None:
            ctx.set_timer(event_time=5)

    with pytest.raises(tr.UserCodeError, match=r"has no on_timer, .*: on_timer\(self, timestamp, ctx\)"):
        tr.testing.harness(Sets(), key=abs).push(1)


def test_a_state_that_is_added_to_is_reported_where_its_value_is() -> None:
    class Counts(tr.KeyedProcessFunction):
        n: Any = tr.ValueState(int, default=0)

        def process(self, value: Any, ctx: tr.Context) -> None:
            self.n += 1

    with pytest.raises(tr.UserCodeError, match=r"write self\.n\.value \+= "):
        tr.testing.harness(Counts(), key=abs).push(1)


# Options.


def _options() -> Iterator[Any]:
    """Every option by name of everything that users call, unless the callee looks at them itself."""
    unnamed = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY)
    for one in (tr.Tumbling, tr.Sliding):
        for option in inspect.signature(one).parameters:
            yield pytest.param(one, option, id=f"{one.__name__}-{option}")
    named = [getattr(tr, name) for name in tr.__all__] + [*vars(tr.sources).values(), *vars(tr.sinks).values()]
    classes = dict.fromkeys(base for one in named if inspect.isclass(one) for base in one.__mro__)
    for cls in classes:
        for name, function in vars(cls).items():
            if inspect.isfunction(function) and function.__code__.co_filename == spelling.__file__:
                for option in list(inspect.signature(function).parameters.values())[1:]:
                    if option.kind not in unnamed and len(option.name) > 2:
                        yield pytest.param(function, option.name, id=f"{cls.__name__}.{name}-{option.name}")


@pytest.mark.parametrize(("function", "option"), list(_options()))
def test_a_misspelt_option_is_reported_with_the_one_that_is_meant(function: Any, option: str) -> None:
    wrong = option + option[-1]
    with pytest.raises(
        TypeError, match=f"unknown option {wrong}; the options are .*; did you mean {option}?"
    ) as caught:
        function(None, **{wrong: 1})
    assert isinstance(caught.value, tr.ConfigError)


def test_what_users_write_most_is_covered() -> None:
    covered = {one.id for one in _options()}
    assert {
        *("Environment.__init__-parallelism", "CheckpointConfig.__init__-interval", "Environment.execute-name"),
        *("TextFiles.__init__-follow", "DataStream.key_by-name", "FixedDelay.__init__-attempts", "Rounds.__init__-max"),
    } <= covered


def test_a_type_error_of_what_is_called_stays_what_it_was() -> None:
    class Items:
        def __iter__(self) -> Iterator[int]:
            raise TypeError("mine")

    with pytest.raises(TypeError, match="mine") as caught:
        tr.Environment().from_collection(items=Items())
    assert not isinstance(caught.value, spelling.UnknownOption)


@pytest.mark.parametrize(
    ("write", "error"),
    [
        (lambda stream: stream.map(id, paralelism=1), "map: unknown option paralelism; .* did you mean parallelism?"),
        (
            lambda stream: stream.assign_timestamps(id, out_of_order=3),
            "unknown option out_of_order; the options are out_of_orderness, .*; did you mean out_of_orderness?",
        ),
    ],
)
def test_options_of_verbs_are_reported_with_those_that_are_their_own(
    write: Callable[[Any], object], error: str
) -> None:
    with pytest.raises(tr.GraphError, match=error):
        write(tr.Environment().from_collection([1]))


@pytest.mark.parametrize(
    ("write", "error"),
    [
        (lambda: tr.Environment(work_dir=5), "work_dir is a path or URL, not 5"),
        (lambda: tr.CheckpointConfig("x", keep_runs=True), "keep_runs must be a whole number of at least 1"),
        (lambda: tr.CheckpointConfig("x", storage_options="hunter2"), "storage_options must be a dict, .* not a str$"),
        (lambda: tr.ExponentialDelay(multiplier=float("nan")), "multiplier must be a number of at least 1, not nan"),
        (lambda: tr.ExponentialDelay(multiplier=float("inf")), "multiplier must be a number of at least 1, not inf"),
        (lambda: tr.sources.Generator(abs, count=-1), "count must be a whole number of at least 0, or None, not -1"),
        (lambda: tr.sources.Generator(abs, count="5"), "count must be a whole number of at least 0, or None, not '5'"),
    ],
)
def test_a_value_that_a_setting_cannot_have_is_refused_where_it_is_written(
    write: Callable[[], object], error: str
) -> None:
    with pytest.raises(tr.ConfigError, match=error):
        write()


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        (
            "TAILRACE_MASTER",
            "lokal[2]",
            r"--master, or TAILRACE_MASTER: expected a master of Spark .* got 'lokal\[2\]'",
        ),
        ("TAILRACE_SHIP", "no", "TAILRACE_SHIP must be 1 or 0, not 'no'"),
        ("TAILRACE_PROGRESS", "false", "TAILRACE_PROGRESS must be 1 or 0, not 'false'"),
    ],
)
def test_a_value_that_a_variable_cannot_have_is_refused(
    name: str, value: str, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`no` and `false` were taken for yes."""
    requested = {"TAILRACE_MASTER": Defaults.spark_master, "TAILRACE_SHIP": Defaults.ships}
    ask = requested.get(name, Defaults.show_progress)
    monkeypatch.setenv(name, value)
    with pytest.raises(tr.ConfigError, match=error):
        ask(Defaults())
    monkeypatch.setenv(name, "0" if name != "TAILRACE_MASTER" else "")
    assert not ask(Defaults())


# Places and DataFrames.


@pytest.mark.parametrize("below", ["", "/out"])
@pytest.mark.parametrize("make", [tr.sinks.TextFiles, tr.sinks.Parquet])
def test_a_sink_where_a_file_is_is_refused_where_it_is_written(tmp_path: Path, make: Any, below: str) -> None:
    """A raw NotADirectoryError came, in tests at the end of the job, from removing what it had left."""
    file = tmp_path / "a file"
    file.touch()
    with pytest.raises(tr.ConfigError, match=f"{make.__name__}: {file}{below} .* a sink writes a folder of files"):
        make(f"{file}{below}")


@pytest.mark.parametrize("path", [None, 5, "", b"x"])
@pytest.mark.parametrize("make", [tr.sinks.TextFiles, tr.sinks.Parquet, tr.sources.TextFiles, tr.sources.Parquet])
def test_what_is_no_path_is_refused(make: Any, path: Any) -> None:
    with pytest.raises(tr.ConfigError, match="a path or URL is a text, not"):
        make(path)


def test_a_folder_that_becomes_a_file_fails_the_job_as_itself(tmp_path: Path) -> None:
    env = tr.Environment(parallelism=1)
    env.from_collection([1]).sink_to(tr.sinks.TextFiles(str(tmp_path / "out")))
    (tmp_path / "out").touch()
    with pytest.raises(tr.JobFailed, match=r"operator 'sink: text files', .*the sink raised \w+Error"):
        tr.testing.run(env)


def test_a_streaming_dataframe_is_told_what_can_be_done() -> None:
    df = SimpleNamespace(mapInArrow=id, schema=None, isStreaming=True)
    with pytest.raises(
        tr.GraphError, match=r"from_dataframe: this DataFrame is a streaming one.*spark\.read instead of"
    ):
        tr.Environment().from_dataframe(df)


def test_a_pandas_dataframe_is_told_how_it_becomes_one_of_spark() -> None:
    with pytest.raises(tr.GraphError, match=r"got pandas\.DataFrame; spark\.createDataFrame\(df\) makes one"):
        tr.Environment().from_dataframe(pd.DataFrame({"a": [1]}))
    with pytest.raises(tr.GraphError, match=r"got str$"):
        tr.Environment().from_dataframe("x")
