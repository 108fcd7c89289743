"""Task slots: what Spark may give counts, not what is there by now."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import tailrace as tr
from tailrace.spark.cluster.capacity import may_give, notices_after, on_each_executor
from tailrace.spark.cluster.classic import Classic
from tailrace.spark.slots import slot_reservations
from tailrace.spark.slots.profiles import check_share
from tailrace.spark.slots.slot_reservations import give_back, take_slots

DYNAMIC = {"dynamicAllocation.enabled": "true"}


def conf(settings: dict[str, str]) -> dict[str, str]:
    return {f"spark.{name}": value for name, value in settings.items()}


@pytest.mark.parametrize(
    ("master", "settings", "slots"),
    [
        ("local-cluster[2, 3, 1024]", {}, 6),
        ("local-cluster[2,3,1024]", {"task.cpus": "2"}, 2),
        ("spark://head:7077", {}, None),
        ("spark://head:7077", {"cores.max": "7"}, 7),
        ("spark://head:7077", {"cores.max": "7", "executor.cores": "2"}, 6),
        ("spark://head:7077", {"cores.max": "2", "task.cpus": "0.25"}, 8),
        ("spark://head:7077", DYNAMIC, None),
        ("spark://head:7077", DYNAMIC | {"dynamicAllocation.maxExecutors": "4"}, None),  # of any size
        ("spark://head:7077", DYNAMIC | {"dynamicAllocation.maxExecutors": "4", "executor.cores": "2"}, 8),
        (
            "spark://a,b:7077",
            DYNAMIC | {"dynamicAllocation.maxExecutors": "9", "executor.cores": "2", "cores.max": "5"},
            4,
        ),
        ("yarn", {}, 2),
        ("yarn", {"executor.instances": "5", "executor.cores": "4", "task.cpus": "3"}, 5),
        ("yarn", DYNAMIC | {"executor.instances": "5"}, None),
        ("k8s://https://host:443", DYNAMIC | {"dynamicAllocation.maxExecutors": "3", "executor.cores": "4"}, 12),
        ("k8s://https://host:443", DYNAMIC | {"dynamicAllocation.maxExecutors": "2147483647"}, None),
        ("another://host", {"cores.max": "7"}, None),
    ],
)
def test_what_spark_may_give_follows_from_its_settings(
    master: str, settings: dict[str, str], slots: int | None
) -> None:
    assert may_give(master, conf(settings).get) == slots


@pytest.mark.parametrize(
    ("master", "settings", "slots"),
    [
        ("local[4]", {"executor.cores": "4"}, 0),
        ("local-cluster[2, 3, 1024]", {}, 3),
        ("spark://head:7077", {}, 0),
        ("spark://head:7077", {"executor.cores": "4", "task.cpus": "2"}, 2),
        ("yarn", {}, 1),
        ("k8s://https://host:443", {"executor.cores": "4"}, 4),
    ],
)
def test_how_many_tasks_are_lost_with_an_executor_follows_from_its_settings(
    master: str, settings: dict[str, str], slots: int
) -> None:
    assert on_each_executor(master, conf(settings).get) == slots


@pytest.mark.parametrize(
    ("master", "settings", "seconds"),
    [
        ("local[4]", {}, 0.0),
        ("spark://head:7077", {}, 180.0),
        ("yarn", {"network.timeout": "300", "network.timeoutInterval": "5000ms"}, 305.0),
        ("k8s://host", {"network.timeout": " 10min", "network.timeoutInterval": "1m"}, 660.0),
    ],
)
def test_spark_notices_after_some_time_that_an_executor_hangs(
    master: str, settings: dict[str, str], seconds: float
) -> None:
    assert notices_after(master, conf(settings).get) == seconds


class Session(Classic):
    """A Spark with so many slots, one number for each query; and how long ago it was started."""

    def __init__(self, master: str, settings: dict[str, str], *there: int, age: float = 100.0) -> None:
        started = (time.time() - age) * 1000
        super().__init__(SimpleNamespace(master=master, startTime=started, _conf=conf(settings)))
        vars(self)["there"] = list(there)

    def total_slots(self, profile: Any = None) -> int | None:
        return vars(self)["there"].pop(0)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The pauses between two looks."""
    pauses: list[float] = []
    monkeypatch.setattr(
        slot_reservations, "time", SimpleNamespace(monotonic=lambda: sum(pauses), sleep=pauses.append, time=time.time)
    )
    yield pauses
    for tag in ("one", "two"):
        give_back(tag)


def test_executors_that_come_when_tasks_wait_for_them_are_not_waited_for(pauses: list[float]) -> None:
    """An idle session has none of them, and there was an error: the job had to wait for what only its tasks bring."""
    spark = Session("yarn", DYNAMIC)
    assert take_slots(spark, 500, "job", "one", 60.0) is None
    assert take_slots(spark, 500, "job", "two", 60.0) is None and not pauses


def test_more_than_may_come_is_refused_at_once(pauses: list[float]) -> None:
    spark = Session("yarn", DYNAMIC | {"dynamicAllocation.maxExecutors": "4"})
    with pytest.raises(tr.SlotsError, match=r"needs 5 task slots .* and Spark gives at most 4 \(master yarn\)"):
        take_slots(spark, 5, "job", "one", 60.0)
    assert take_slots(spark, 3, "job", "one", 60.0) is None
    assert "takes all 1 free task slots" in (take_slots(spark, 1, "job", "two", 60.0) or "")
    static = Session("yarn", {"executor.instances": "2"})
    with pytest.raises(tr.SlotsError, match=r"needs 3 task slots .* and Spark has 2, .* \(master yarn\)"):
        take_slots(static, 3, "job", "three", 60.0)
    assert not pauses


def test_slots_of_part_of_a_core_are_counted_by_what_they_take(pauses: list[float]) -> None:
    spark = Session("spark://head:7077", {"cores.max": "2"}, 8, 2, 8)
    assert take_slots(spark, 3, "job", "one", 60.0, 0.25) is None
    with pytest.raises(tr.SlotsError, match=r"needs 2 task slots .* and Spark has 2, 1 of them taken"):
        take_slots(spark, 2, "job", "two", 60.0)
    assert "takes all 5 free" in (take_slots(spark, 5, "job", "two", 60.0, 0.25) or "")


def test_standbys_take_what_is_left_and_the_job_is_told_how_many_that_are(pauses: list[float]) -> None:
    spark = Session("spark://head:7077", {"cores.max": "8"}, 8, 8, 8, 8)
    taken = take_slots(spark, 6, "job", "one", 60.0, standbys=3)
    assert taken is not None and "has 2 of 3 standbys" in taken and "with 1 more" in taken
    with pytest.raises(tr.SlotsError, match=r"needs 1 task slots .* and Spark has 8, 8 of them taken"):
        take_slots(spark, 1, "job", "two", 60.0)
    give_back("one")
    assert take_slots(spark, 4, "job", "one", 60.0, standbys=3) is None
    assert "has 0 of 1 standbys" in (take_slots(spark, 1, "job", "two", 60.0, standbys=1) or "")


def test_parts_of_a_core_that_spark_does_not_know_are_refused() -> None:
    for version in ("4.0.5", "4.2.0.dev1"):
        check_share(2.0, version)
        with pytest.raises(tr.ConfigError, match=rf"task_cpus=0.5: Spark {version} gives tasks whole cores only"):
            check_share(0.5, version)
    check_share(0.5, "4.3.0")


def test_executors_are_waited_for_as_long_as_slot_timeout_says(pauses: list[float]) -> None:
    """The executors came one by one, the last of them half a minute after the first: the job had given up after 15 s."""
    spark = Session("spark://head:7077", {}, *[0] * 50, *[1] * 150, 3)
    assert take_slots(spark, 3, "job", "one", 60.0) is not None
    assert 39 < sum(pauses) < 41
    with pytest.raises(tr.SlotsError, match=r"needs 3 task slots .* and Spark has 2, 3 of them taken"):
        take_slots(Session("spark://head:7077", {}, *[2] * 400), 3, "job", "two", 60.0)
    assert 100 <= sum(pauses) < 101


def test_nobody_is_warned_while_executors_arrive(pauses: list[float]) -> None:
    """The job took all slots of those that were there by then, and the rest of them came a second later."""
    assert take_slots(Session("spark://head:7077", {}, 3, age=2.0), 3, "job", "one", 60.0) is None
    give_back("one")
    assert take_slots(Session("spark://head:7077", {"cores.max": "6"}, 3, age=2.0), 3, "job", "one", 60.0) is None
    give_back("one")
    taken = take_slots(Session("spark://head:7077", {"cores.max": "3"}, 3, age=2.0), 3, "job", "one", 60.0)
    assert taken is not None and "takes all 3 free task slots" in taken


def test_workers_leave_an_executor_that_goes_only_where_the_others_have_room(pauses: list[float]) -> None:
    """On a cluster without a spare slot the move gave up a worker that could have gone on for as long as its machine was
    there, and the job failed when no slot had come for `slot_timeout`."""
    spark = Session("spark://head:7077", {}, 4, 4, 3, 3, 2, 2)  # the last ones without the executors that go
    assert take_slots(spark, 2, "job", "one", 60.0) is None
    assert take_slots(spark, 1, "job", "two", 60.0) is None
    assert slot_reservations.have_room(spark, "one") and slot_reservations.have_room(spark, "two")
    assert not slot_reservations.have_room(spark, "one") and not slot_reservations.have_room(spark, "two")
    assert slot_reservations.have_room(Session("yarn", DYNAMIC), "one"), "Spark may start executors"


def test_a_worker_leaves_an_executor_for_the_slot_of_its_standby(pauses: list[float]) -> None:
    """Two workers and a standby on three executors, one of which goes: there is no room for all three any more, and one of
    the two that stay has the standby."""
    spark = Session("spark://head:7077", {}, 3, 2, 2, 1)
    assert take_slots(spark, 2, "job", "one", 60.0, standbys=1) is not None
    assert not slot_reservations.have_room(spark, "one")
    assert slot_reservations.have_room(spark, "one", least=2)
    assert not slot_reservations.have_room(spark, "one", least=2)


def test_a_local_session_has_slots_for_those_who_stand_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standbys took the one slot to spare, and each job warned that it leaves none."""
    monkeypatch.setattr("tailrace.spark.start.job_submission.active_or_local", lambda slots, master, conf: slots)
    kept = tr.CheckpointConfig("unused")
    assert tr.Environment(parallelism=3).spark == 7, "for two jobs, and one to spare"
    assert tr.Environment(parallelism=3, checkpoint=kept, standby=tr.StandbyConfig()).spark == 9
    assert tr.Environment(parallelism=5, checkpoint=kept, standby=tr.StandbyConfig()).spark == 15
    assert tr.Environment(parallelism=3, checkpoint=kept, standby=tr.StandbyConfig(replicas=0)).spark == 7
