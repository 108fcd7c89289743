"""What a running job does and what holds it, in a terminal: `tailrace show`, `doctor`, `stacks` and `top`."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from tailrace.cli import control, watching
from tailrace.cli.main import app
from tailrace.coordinator.actions import Restarting
from tailrace.coordinator.checkpoint_stats import Books, CheckpointStats, PendingStats
from tailrace.coordinator.job.failures import Cause
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.coordinator.view.job_snapshot import JobSnapshot
from tailrace.coordinator.view.slices import Failover, Slices, SliceStandby, SliceStatus
from tailrace.coordinator.view.summary import span_text
from tailrace.elements.timestamps import MIN_TIME
from tailrace.protocol.deployment import FailureKind, InputTime
from tests.coordinator.view.test_diagnosis import loop, timed, timed_report
from tests.coordinator.view.test_snapshot_maker import SECOND, Watched, plan_of, report, scores


class Answering:
    """A job that answers commands with a snapshot. `asked`: the verbs of the requests."""

    def __init__(self, shot: JobSnapshot, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shot = shot
        self.asked: list[str] = []
        self.answers: dict[str, Any] = {"keys": {"keys": {}}}
        for module in (control, watching):
            monkeypatch.setattr(module, "answer_of", self.answer)

    def answer(self, job: str, request: dict[str, Any], *others: Any) -> dict[str, Any]:
        assert job in ("scores", self.shot.job.id)
        self.asked.append(request["verb"])
        if request["verb"] == "snapshot":
            subtasks = self.shot.subtasks if request["subtasks"] else None
            return msgspec.to_builtins(msgspec.structs.replace(self.shot, subtasks=subtasks))
        return self.answers[request["verb"]]


def called(*args: str) -> tuple[int, str]:
    """The exit code of a command, and its output."""
    ended = CliRunner().invoke(app, list(args))
    return ended.exit_code, ended.output


def busy_job() -> Watched:
    watched = Watched(plan_of(scores))
    for at in range(1, 12):
        pressed = [report(0, one, 100 * at, source=True, waits_for="no credit") for one in (0, 1)]
        watched.see(at, *pressed, report(1, 0, 10 * at, at * 0.2), report(1, 1, 90 * at, at * 0.95, queued_bytes=9_000))
    return watched


def test_how_a_job_goes_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = busy_job()
    last = CheckpointStats(7, "/c/scores/1/7.manifest", 0, 12_500, 5_656, 500, 1_000, 2_000, 9_000, 5_656)
    books = Books((last,), 1, pending=(PendingStats(8, 5 * SECOND, "aligning", (1,)),))
    slices = Slices((SliceStatus(0, "10.0.0.1", None, 4711, 0),))
    watched.maker.note(Restarting(1, Cause("ValueError: no", FailureKind.USER, "score")))
    watched.view = replace(watched.view, books=books, slices=slices, refused={"wrong token": 3, "no worker": 1200})
    job = Answering(watched.shot(), monkeypatch)
    text = """\
scores (id), process 0
RUNNING for 10.0 s | in 2,200 at 200/s | out 0 at 0/s | busy 95%
`score → sink: callback` is busy (95%): the operators before it wait; its subtask 1 has 100% of what waits.
last failure at 1970-01-01T00:00:00.000Z, 11.0 s ago, before restart 1: ValueError: no
checkpoint 7: 5.5 KiB in 12 ms (trigger 0, alignment 1, freeze 2, write 9)
/c/scores/1/7.manifest
checkpoint 8 under way for 5.0 s: aligning, in worker 1
refused connections: 3 (wrong token), 1,200 (no worker)

operator               tasks  busy  waits  held     in   in/s    out  out/s  waiting  state entries  heaviest
"""
    code, output = called("show", "scores")
    assert code == 0 and output.startswith(text), output
    rows = output[output.index("operator  ") :].splitlines()
    score = next(row for row in rows if row.startswith("score"))
    assert " ".join(score.split()) == "score 2 95% 80% 0% 1,100 100.0 1,100 100.0 8.8 KiB 0 1 (90%)"
    assert output.endswith("slice      host  executor  process  attempt\n    0  10.0.0.1               4711        0\n")
    assert json.loads(called("show", "scores", "--json")[1])["sentence"] == job.shot.sentence
    assert job.asked == ["snapshot", "snapshot"]


def test_subtasks_are_shown_on_request_and_who_holds_event_time_back(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(timed)
    [edge] = [edge.id for edge in plan.edges]
    watched = Watched(plan)
    reports = [timed_report(one, MIN_TIME, InputTime(edge, 7 * SECOND, 1), vertex=1) for one in (0, 1)]
    watched.see(9, timed_report(0, 100 * SECOND), timed_report(1, MIN_TIME), *reports)
    Answering(watched.shot(subtasks=True), monkeypatch)
    output = called("show", "scores", "--subtasks")[1]
    assert "operator  subtask  in  out  busy s  unread  unsent  state entries  step s  age s  watermark" in output
    lines = [" ".join(line.split()) for line in output.splitlines()]
    assert "operator input watermark in subtask held back by" in lines
    assert "count times 1970-01-01T00:00:07.000Z 0 subtask 1, split 4" in lines
    assert "subtask  in" not in called("show", "scores")[1]


def test_a_loop_is_shown_with_its_round(monkeypatch: pytest.MonkeyPatch) -> None:
    Answering(Watched(plan_of(loop)).shot(), monkeypatch)
    output = called("show", "scores")[1]
    assert "loop     waiting at its head  gone around  around/s  round\nhalving  " in output
    assert "RUNNING for" in output and "no worker has reported yet" in output


def test_where_lost_workers_are_replaced_each_slice_is_shown_with_its_standbys_and_its_losses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ready, late = SliceStandby(2, "h3", "5", 4714, True, 7, 2, 1.5), SliceStandby(3, "h4", None, 4715, False)
    failover = Failover(1_700_000_000.5, 20.0, 1.0, 300.0, 79.0, 400.0)
    slices = (
        SliceStatus(0, "h1", "3", 4711, 0, (ready, late), 1_200, 14_000, 3_000_000, not_replaced="the job is STOPPING"),
        SliceStatus(1, "h2", "4", 4712, 1, (replace(ready, behind=0),), 0, 0, 500, replaced=1, last_failover=failover),
        SliceStatus(2, None, None, None, 0, being_replaced=True),
    )
    watched = busy_job()
    watched.view = replace(watched.view, slices=Slices(slices, (1, 2)))
    Answering(watched.shot(), monkeypatch)
    text = """\
slice  host     executor  process  attempt  standbys                      behind                     log  entries     kept  replaced
    0  h1       3         4711           0  2 on h3, executor 5; 3 on h4  2 (1.5 s); not ready  13.7 KiB    1,200  2.9 MiB         0
    1  h2       4         4712           1  2 on h3, executor 5           0                          0 B        0    500 B         1
    2  nowhere                           0  none                                                     0 B        0      0 B         0

slice 0: all had to start again when it was lost: the job is STOPPING
slice 1: lost at 2023-11-14T22:13:20.500Z and replaced in 400 ms (process 20, survivors 1, restore 300, replay 79)
slice 2: its worker was lost, and is being replaced
"""  # noqa: E501 - as wide as it is
    output = called("show", "scores")[1]
    assert output[output.index("slice  host") :] == text
    assert json.loads(called("show", "scores", "--json")[1])["slices"][1]["last_failover"] == asdict(failover)


def test_the_doctor_says_what_holds_the_job_and_looks_for_the_key_that_takes_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched = busy_job()
    job = Answering(watched.shot(), monkeypatch)
    code, output = called("doctor", "scores")
    assert (code, output) == (1, f"{job.shot.sentence}\n") and "is busy (95%)" in output
    assert job.asked == ["snapshot", "keys", "snapshot"]
    code, output = called("doctor", "scores", "--json")
    found = json.loads(output)
    assert (found["health"], found["findings"][0]["kind"], found["sentence"]) == ("warns", "skew", job.shot.sentence)


def test_a_job_that_nothing_holds_is_healthy_and_its_last_failure_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(plan_of(scores))
    text = 'ValueError: no\n  File "job.py", line 7, in score\n    raise ValueError("no")\n'
    watched.maker.note(Restarting(1, Cause(text, FailureKind.USER, "score")))
    watched.see(1, *(report(vertex, subtask, 1) for vertex in (0, 1) for subtask in (0, 1)), restarts=1)
    job = Answering(watched.shot(), monkeypatch)
    when = "1970-01-01T00:00:00.000Z, 1.0 s ago, before restart 1"
    last = f'last failure at {when}: ValueError: no (job.py:7: raise ValueError("no"))'
    assert called("doctor", "scores") == (0, f"Nothing holds the job.\n{last}\n")
    assert last in called("show", "scores")[1].splitlines()
    assert job.asked == ["snapshot", "snapshot"]


def test_a_job_that_does_not_go_on_has_an_exit_code_of_its_own_and_its_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(plan_of(scores))
    watched.see(1, status=JobStatus.RESTARTING, restarts=2)
    watched.maker.note(Restarting(2, Cause("ValueError: no\n  a line", FailureKind.USER)))
    Answering(watched.shot(), monkeypatch)
    code, output = called("doctor", "scores")
    assert (code, output) == (4, "The job restarts (restart 2): ValueError: no\n  ValueError: no\n    a line\n")


def test_the_stacks_of_all_workers_are_printed_and_who_gives_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Answering(busy_job().shot(), monkeypatch)
    threads = [
        {"thread": "worker", "operator": "score", "stack": '  File "job.py", line 7, in score\n'},
        {"thread": "storage", "operator": None, "stack": ""},
    ]
    who = {"worker": 0, "standby": False, "host": "h1", "pid": 4711, "problem": ""}
    silent = {**who, "worker": 2, "standby": True, "problem": "no answer", "threads": []}
    job.answers["stacks"] = {"workers": [{**who, "threads": threads}, silent], "keys": {}}
    text = """\
worker 0, h1, process 4711
thread worker, in operator 'score'
  File "job.py", line 7, in score
thread storage
  it waits for messages, or for time

standby 2, h1, process 4711: no answer

"""
    assert called("stacks", "scores") == (0, text)
    assert json.loads(called("stacks", "scores", "--json")[1]) == job.answers["stacks"]
    job.answers["stacks"] = {"workers": [], "keys": {}}
    assert called("stacks", "scores") == (0, "no worker is there\n")


def test_in_a_pipe_top_prints_once_what_show_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    Answering(busy_job().shot(subtasks=True), monkeypatch)
    assert called("top", "scores") == called("show", "scores")
    assert called("top", "scores", "--subtasks") == called("show", "scores", "--subtasks")


def test_an_answer_of_another_version_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Answering(busy_job().shot(), monkeypatch)
    monkeypatch.setattr(job, "answer", lambda *given: {"name": "scores"})
    monkeypatch.setattr(control, "answer_of", job.answer)
    code, output = called("show", "scores")
    assert (code, "runs with another version of Tailrace" in output) == (1, True)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0, "0.0 s"), (192, "3 min 12 s"), (7_500, "2 h 5 min"), (273_600, "3 d 4 h")]
)
def test_durations_are_for_people(seconds: float, text: str) -> None:
    assert span_text(seconds) == text
