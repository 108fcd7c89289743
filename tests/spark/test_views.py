"""Views of a job for SQL, and jobs that are known by their name."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tailrace as tr
from tailrace.errors import CheckpointNotFound, ConfigError
from tailrace.spark.data import jobfolders, views
from tailrace.spark.data.outputsource import OutputOptions
from tailrace.spark.data.schemas import spark_schema
from tailrace.spark.data.statesource import ReadOptions, StateReader, carry
from tailrace.statedata.stored import StoredCheckpoint
from tests.spark.waiting import waited
from tests.statedata.conftest import seen, taken
from tests.statedata.test_writing import on_disk


@pytest.fixture(scope="module")
def moments() -> list[StoredCheckpoint]:
    """Two moments of a run."""
    return [taken(lambda env: seen(env, 3_000), number=number) for number in (1, 2)]


def test_a_live_state_is_the_one_of_the_newest_checkpoint(moments: list[StoredCheckpoint], tmp_path: Path) -> None:
    folder = on_disk(moments[0], tmp_path)
    options = ReadOptions.of({"path": folder, "uid": "seen", "state": "count", "live": "true"}, "/")
    reader = StateReader(options, spark_schema(options.view().schema()), carry())
    [partition] = reader.partitions()

    def total() -> int:
        task = pickle.loads(pickle.dumps(reader))
        return sum(sum(batch["value"].to_pylist()) for batch in task.read(partition))

    first = total()
    on_disk(moments[1], tmp_path)
    assert 0 < first < total() == expected(moments[1])


def expected(stored: StoredCheckpoint) -> int:
    groups = stored.entries("seen", {"count"}, (0, 16))
    return sum(sum(one.entries.values()) for one in groups)


def test_a_checkpoint_is_found_by_its_number(moments: list[StoredCheckpoint], tmp_path: Path) -> None:
    folder = Path(on_disk(moments[1], tmp_path))
    number = moments[1].manifest.checkpoint - 1
    for path in (folder, folder.parent):
        found = StoredCheckpoint.open(str(path), None, number)
        assert found.manifest.checkpoint == number
        assert expected(found) < expected(moments[1])
    by_name = ReadOptions.of(
        {"path": str(folder.parent), "job": "job", "checkpoint": str(number), "what": "positions"}, "/"
    )
    assert by_name.view().stored.name == found.name
    with pytest.raises(CheckpointNotFound, match="there is no checkpoint 99 in"):
        StoredCheckpoint.open(str(folder), None, 99)
    on_disk(moments[1], tmp_path / "job-b")
    (tmp_path / "job-b" / "job").rename(tmp_path / "other")
    with pytest.raises(CheckpointNotFound, match=r"checkpoint 1 of which job"):
        StoredCheckpoint.open(str(tmp_path), None, 1)


@pytest.mark.parametrize("more", [{"checkpoint": "1"}, {"partitions": "2"}])
def test_a_live_state_is_read_by_one_task(more: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="one task reads the newest one"):
        ReadOptions.of({"path": "p", "live": "true", **more}, "/")


def started(name: str, folder: str | None) -> Any:
    return SimpleNamespace(name=name, _monitor=SimpleNamespace(checkpoints=folder))


def test_a_job_is_known_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last one of this program, else a running one of this user."""
    running = {"a": ("/x/1", "/x/1"), "b": ("/y/1", "/y/2"), "c": (None,), "d": ("/z",)}
    doors = [(f"{name}{i}", {"name": name}) for name, places in running.items() for i, _ in enumerate(places)]
    monkeypatch.setattr(jobfolders, "JOBS", [started("d", "/old"), started("d", "/own"), started("e", None)])
    monkeypatch.setattr(jobfolders, "jobs", lambda: iter(doors))
    monkeypatch.setattr(jobfolders, "query", lambda path, *_: {"checkpoints": running[path[0]][int(path[1])]})
    for job, place in (("a", "/x/1"), ("d", "/own")):
        assert jobfolders.folder_by_name(job, "who") == place
        assert OutputOptions.of({"job": job}, "/").path == place
        assert ReadOptions.of({"job": job}, "/").path == f"{place}/{job}"
    for job, text in (
        ("b", "several running jobs"),
        ("c", "takes no checkpoints"),
        ("e", "takes no checkpoints"),
        ("f", "no job 'f'"),
    ):
        with pytest.raises(ConfigError, match=text):
            OutputOptions.of({"job": job}, "/")
    with pytest.raises(ConfigError, match="or the name of a running job"):
        ReadOptions.of({"uid": "u"}, "/")


class Session:
    """A session of which the test knows the tables."""

    def __init__(self, *tables: str) -> None:
        self.catalog = SimpleNamespace(tableExists=lambda name: name in tables)


def view(name: str, shows: str) -> views.TemporaryView:
    return views.TemporaryView(name, shows, "tailrace", {})


def test_no_view_takes_the_name_of_something_else() -> None:
    spark = Session("seen_late")
    made = {"seen_totals": ("/a/visits", "the output of sink 'totals'")}
    views._check_names(spark, "/a/visits", [view("seen_totals", "the output of sink 'totals'")], made)
    for place, some, text in (
        ("/a/visits", [view("v_a_b", "x"), view("V_A_B", "y")], "x and y would both be V_A_B"),
        ("/a/visits", [view("seen_late", "x")], "there is a table or view seen_late already"),
        (
            "/a/visits",
            [view("seen_totals", "x")],
            "seen_totals shows the output of sink 'totals' of the job in /a/visits",
        ),
    ):
        with pytest.raises(ConfigError, match=text):
            views._check_names(spark, place, some, made)
    with pytest.raises(ConfigError, match=r"of the job in /a/visits already: choose another prefix="):
        views._check_names(spark, "/b/visits", [view("seen_totals", "the output of sink 'totals'")], made)


class Mixed(tr.KeyedProcessFunction):
    last = tr.ValueState()
    nothing = tr.ValueState()

    def process(self, value: int, ctx: Any) -> Any:
        self.last.value = value if value % 2 else str(value)
        yield value


def test_values_of_several_types_are_texts_and_an_empty_state_has_no_view() -> None:
    def build(env: tr.Environment) -> None:
        numbers = env.from_source(tr.sources.Sequence(0, 100), uid="numbers")
        numbers.key_by(lambda n: n % 10).process(Mixed(), uid="mixed").sink_to(tr.sinks.Collect(), uid="out")

    found = list(views._states(taken(build), "seen", {"path": "p"}, "_at_7"))
    assert [one.name for one in found] == ["seen_mixed_last_at_7"]
    assert found[0].options == {"path": "p", "uid": "mixed", "state": "last", "values": "text"}
    assert found[0].schema.simpleString() == "struct<key:bigint,value:string>"


def test_names_are_those_that_sql_takes_without_quotes() -> None:
    assert views._name("seen", "per user", "käse.last-seen") == "seen_per_user_k_se_last_seen"


def test_views_need_a_session_and_a_number() -> None:
    with pytest.raises(ConfigError, match="expected a SparkSession, got str"):
        tr.spark.views("spark", "seen")
    with pytest.raises(ConfigError, match="checkpoint is the number of a checkpoint, not 'last'"):
        tr.spark.views(SimpleNamespace(dataSource=None), "seen", checkpoint="last")  # type: ignore[arg-type]


class Visits(tr.KeyedProcessFunction):
    count = tr.ValueState(int, default=0)
    pages = tr.MapState(str, int)

    def process(self, value: int, ctx: Any) -> Any:
        self.count.value += 1
        self.pages[f"page {value % 3}"] = value
        yield ctx.key, self.count.value


@pytest.mark.spark
@pytest.mark.matrix
def test_a_running_job_is_seen_as_tables(spark: Any, tmp_path: Path) -> None:
    config = tr.CheckpointConfig(tmp_path / "checkpoints", interval=None, keep=10)
    env = tr.Environment(spark, parallelism=2, checkpoint=config)
    numbers = env.from_source(tr.sources.Sequence(0, 10_000_000, rate=2_000), uid="numbers")
    counted = numbers.key_by(lambda n: n % 4).process(Visits(), uid="users")
    counted.to_streaming("totals", "user long, total long", retain="always")
    job = env.execute("seen")
    try:
        first = job.checkpoint()
        while ("users", "count") not in StoredCheckpoint.open(first.path).sizes():
            first = job.checkpoint()  # nothing was read before the last one
        made = tr.spark.views(spark, "seen")
        assert sorted(made) == ["seen_checkpoints", "seen_totals", "seen_users_count", "seen_users_pages"]
        sums = "select sum(value) from seen_users_count"
        before = spark.sql(sums).collect()[0][0]
        at = f"seen_users_count_at_{first.id}"
        assert at in tr.spark.views(spark, "seen", checkpoint=first.id)
        then = spark.sql(f"select sum(value) from {at}").collect()[0][0]
        second = job.checkpoint()
        after = spark.sql(sums).collect()[0][0]
        assert 0 < then == before < after
        assert spark.sql(f"select sum(value) from {at}").collect()[0][0] == then
        numbers_kept = [row.checkpoint for row in spark.table("seen_checkpoints").collect()]
        assert {first.id, second.id} <= set(numbers_kept)
        read = spark.read.format("tailrace").option("job", "seen").option("sink", "totals").load()
        assert waited(lambda: spark.table("seen_totals").count() > 0), "a view that was empty fills"
        assert 0 < spark.sql("select count(total) from seen_totals").collect()[0][0] <= read.count()
    finally:
        job.cancel()
        job.await_termination(60)
