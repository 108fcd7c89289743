"""An audit names the operators whose output follows from something that another worker does not have."""

from __future__ import annotations

import importlib
import itertools
import os
import random
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tailrace as tr
from search.programs.golden import PROGRAMS
from search.scenarios import run_scenario, scenario
from tailrace.testing.auditing import Audited
from tailrace.testing.emissions import alike
from tailrace.testing.otherprocess import OtherProcess

WORDS = [{"word": word} for word in ["a", "b", "c", "d", "e", "f", "g", "h"]] * 3


def counted(
    fn: Callable[[str], Any], env: tr.Environment | None = None, key: Callable[[Any], Any] = str
) -> tr.Environment:
    """Words, each through `fn` in an operator called `mine`, and what comes out counted."""
    env = env or tr.Environment(parallelism=2)
    words = env.from_collection(WORDS).map(lambda row: row["word"], name="theirs")
    words.map(fn, name="mine").key_by(key).count().sink_to(tr.sinks.Collect())
    return env


def test_random_numbers_and_clocks_are_the_same_where_workers_are_replaced() -> None:
    fn = lambda word: (word, random.random(), float(np.random.random()), uuid.uuid4().hex, time.time())  # noqa: E731
    standby = tr.StandbyConfig(replicas=0)
    env = tr.Environment(parallelism=2, checkpoint=tr.CheckpointConfig("checkpoints"), standby=standby)
    assert tr.testing.audit(counted(fn, env)).same


def test_what_follows_from_its_input_is_the_same() -> None:
    audit = tr.testing.audit(counted(str.upper))
    assert audit.same, audit
    assert audit.records == 4 * len(WORDS)  # source, both maps and the counts: so much was compared
    assert str(audit) == f"{audit.records} emitted records are the same when they are made again"


@pytest.mark.parametrize(
    "fn",
    [
        lambda word: (word, random.random()),
        lambda word: (word, time.time()),
        lambda word: (word, os.urandom(8)),
        lambda word: (word, os.getpid()),
        lambda word: (word, hash(word)),
        lambda word: (word, list({"x", "y", "z", "one", "two", "three", word})),
    ],
    ids=["random", "the clock", "the system's random", "the process", "a hash", "the order of a set"],
)
def test_it_names_the_operator_that_takes_something_else_for_its_input(fn: Callable[[str], Any]) -> None:
    audit = tr.testing.audit(counted(fn))
    assert {one.operator for one in audit.differences} == {"mine"}
    (first, *_) = audit.differences
    assert "test_auditing.py" in first.written
    assert first.was != first.now
    assert f"operator 'mine', subtask {first.subtask}, emitted {first.was}" in str(audit)


class Unstable(Exception):
    """An exception that pickle cannot make again from its arguments."""

    def __init__(self, word: str, size: int) -> None:
        super().__init__(f"{word} of {size}")


def call_a_service(word: str) -> str:
    if word < "d":
        raise ValueError(f"no {word} in {object()}")
    if word < "g":
        raise Unstable(word, 7)
    return word


def test_records_that_go_aside_are_the_same_wherever_their_error_comes_from() -> None:
    """The line and the text of an error of `ctx.call`, whose answer comes from a log when a step is repeated."""
    env = tr.Environment(parallelism=2)
    words = env.from_collection(WORDS).map(lambda row: row["word"])
    found = words.process(lambda word, ctx: [ctx.call(call_a_service, word)], on_error=tr.Aside("errors"))
    failed = found.side_output("errors").key_by(lambda one: one.record).map(lambda one: one)
    out = tr.sinks.Collect()
    failed.sink_to(out)
    found.sink_to(tr.sinks.Collect())
    audit = tr.testing.audit(env)
    assert audit.same, audit
    assert {(one.record < "d", one.error) for one in out.result()} >= {
        (True, "ValueError: no a in <object object at 0x…>")
    }


def as_set(word: str) -> frozenset[str]:
    return frozenset({"x", "y", "z", "one", "two", "three", word})


def test_a_set_is_the_same_set_in_any_order() -> None:
    audit = tr.testing.audit(counted(as_set, key=len))
    assert audit.same, audit


def test_a_key_that_has_the_order_of_a_set_is_named_where_it_is_made() -> None:
    audit = tr.testing.audit(counted(as_set, key=str))
    assert {one.operator for one in audit.differences} == {"count"}


OWN_CLASS = """
import tailrace as tr

class Own:
    def __init__(self, word):
        self.word = word
        self.parts = {word, "x", "y", "z"}

env = tr.Environment(parallelism=2)
words = env.from_collection(["a", "b", "c", "d"] * 6).map(Own, name="mine")
words.key_by(lambda own: own.word).count().sink_to(tr.sinks.Collect())
print(tr.testing.audit(env))
"""


def test_objects_of_a_class_of_the_program_are_compared_by_what_they_hold(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(OWN_CLASS)
    ran = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert ran.stdout == "72 emitted records are the same when they are made again\n", ran.stderr


class ByContext(tr.ProcessFunction):
    """Takes all that `ctx` has for it."""

    def process(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value, ctx.now(), ctx.random.random(), ctx.call(random.random)


class ByHand(tr.ProcessFunction):
    """Takes the same where it finds it."""

    def process(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value, ctx.now(), random.random()


@pytest.mark.parametrize(("fn", "same"), [(ByContext, True), (ByHand, False)])
def test_what_ctx_gives_is_given_again(fn: type[tr.ProcessFunction], same: bool) -> None:
    env = tr.Environment(parallelism=2)
    env.from_collection(WORDS).process(fn(), name="mine").sink_to(tr.sinks.Collect())
    audit = tr.testing.audit(env)
    assert audit.same is same, audit
    assert {one.operator for one in audit.differences} == (set() if same else {"mine"})


def test_what_has_been_put_into_a_module_is_not_there_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "looked_up_words.py").write_text("FOUND = {}")
    monkeypatch.syspath_prepend(tmp_path)

    def found(word: str) -> Any:
        from looked_up_words import FOUND  # type: ignore[import-not-found]

        return word, FOUND.get(word)

    importlib.import_module("looked_up_words").FOUND["a"] = "the first letter"
    audit = tr.testing.audit(counted(found))
    assert {one.operator for one in audit.differences} == {"mine"}


def test_an_error_that_does_not_come_again_is_a_difference(tmp_path: Path) -> None:
    once = str(tmp_path / "once")

    def fails_once(word: str) -> str:
        if not os.path.exists(once):
            open(once, "w").close()
            raise ValueError("the first word")
        return word

    env = tr.Environment(
        parallelism=2,
        checkpoint=tr.CheckpointConfig(str(tmp_path / "checkpoints")),
        restart=tr.FixedDelay(attempts=3, delay=0.0),
    )
    audit = tr.testing.audit(counted(fails_once, env))
    assert any(one.operator == "mine" and "the first word" in one.was for one in audit.differences), audit


def test_sinks_write_once(tmp_path: Path) -> None:
    env = tr.Environment(parallelism=2, checkpoint=tr.CheckpointConfig(str(tmp_path / "checkpoints")))
    out = env.from_collection(range(20)).sink_to(tr.sinks.Collect())
    files = env.from_collection([f"line {n}" for n in range(20)])
    files.sink_to(tr.sinks.TextFiles(str(tmp_path / "lines")))
    assert tr.testing.audit(env).same
    assert sorted(out.result()) == list(range(20))
    assert not [file for file in os.listdir(tmp_path / "lines") if file.startswith(("_tmp", ".tmp"))]
    lines = [line for file in (tmp_path / "lines").rglob("*.txt") for line in file.read_text().splitlines()]
    assert sorted(lines) == sorted(f"line {n}" for n in range(20))


def test_a_job_that_fails_is_no_audit() -> None:
    with pytest.raises(tr.JobFailed, match="mine"):
        tr.testing.audit(counted(lambda word: word + 1))  # type: ignore[operator]


def test_a_source_without_an_end_is_refused_with_what_to_do() -> None:
    env = tr.Environment(parallelism=1)
    env.from_source(tr.sources.Generator(lambda n: n)).sink_to(tr.sinks.Collect())
    with pytest.raises(tr.GraphError, match="give it an end"):
        tr.testing.audit(env)


class Plain:
    """Without a comparison of its own."""

    def __init__(self, word: str) -> None:
        self.word = word


def test_values_are_alike_where_whoever_gets_them_sees_no_difference() -> None:
    nan = float("nan")
    assert alike([1, (2, {"a": nan})], [1, (2, {"a": float("nan")})])
    assert alike({1: {2, 3}}, {1: {3, 2}})
    assert alike(Plain("a"), Plain("a")) and not alike(Plain("a"), Plain("b"))
    assert not any(itertools.starmap(alike, [(1, 1.0), (True, 1), ([1], (1,)), ("a", b"a"), ([1, 2], [1])]))


@pytest.fixture(scope="module")
def other() -> Iterator[OtherProcess]:
    with OtherProcess("tailrace.testing.auditagain") as other:
        yield other


@pytest.mark.search
@pytest.mark.parametrize("program", sorted(PROGRAMS))
def test_golden_programs_emit_the_same_again_with_all_their_faults(program: str, other: OtherProcess) -> None:
    recordings = Audited()
    run_scenario(scenario(sorted(PROGRAMS).index(program), program), recordings=recordings)
    assert other.request(recordings.workers) == []
    assert sum(one.count for worker in recordings.workers for event in worker.emissions for one in event) > 0
