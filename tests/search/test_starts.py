"""Starting a simulated job again, from any moment of its life: what users and readers do is drawn, and faults are seen."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from search.campaigns.replacements import moving
from search.planted.table import BUGS
from search.scenarios import Scenario, Verdict, run_scenario, scenario
from search.starts import KEPT, Moments
from search.watchers.checker import Book, Ledger, WatchedFiles
from tailrace.coordinator.durability.checkpoints import CheckpointSettings
from tailrace.coordinator.output.publishing import JobOutput
from tailrace.testing.memorystore import MemoryFiles

pytestmark = pytest.mark.search

MS = 1_000


def run(seed: int, program: str = "counted") -> Verdict:
    settings = CheckpointSettings(interval=2 * MS, max_concurrent=2, keep=3)
    made = Scenario(seed, program, 120, parallelism=2, rate=10_000, checkpoints=settings, started_again=5)
    return run_scenario(made)


def test_whatever_users_and_readers_do_the_output_is_right() -> None:
    covered: Counter[str] = Counter()
    for seed in range(6):
        verdict = run(seed)
        assert verdict.wrong == []
        covered.update(verdict.covered)
    done = {what for what in covered if what.startswith("started ")}
    assert done == {f"started {what}" for what in ("same", "elsewhere", "copy", "beside", "without")}
    found = {what for what in covered if what.startswith("found ")}
    assert found == {f"found {what}" for what in ("finished", "nothing", "a checkpoint")}


def test_what_a_start_from_a_checkpoint_does_not_publish_is_missed() -> None:
    send = JobOutput._send

    def forgetful(self: JobOutput, number: int, prepared: Any, recover: Any, now: int) -> Any:
        return send(self, number, prepared if number else [], recover, now)

    with mock.patch.object(JobOutput, "_send", forgetful):
        wrong = run(0).wrong + run(1).wrong
    assert wrong and all(one.startswith("the job, started again (as it was after") for one in wrong)
    assert any("were lost" in one for one in wrong)


def test_a_mark_that_knows_its_job_by_name_only_is_found_to_pass_for_another_dataflow() -> None:
    with mock.patch("tailrace.storage.checkpoint_lookup._check_dataflow"):
        wrong = run(0).wrong
    assert wrong and all("another dataflow is taken for the finished one" in one for one in wrong)


def test_moments_are_kept_from_the_first_checkpoint_on() -> None:
    book = Book()
    files = WatchedFiles([book])
    moments = Moments(files, book, random.Random(1))
    with moments.watching():
        files.create("1/claim", b"")
        assert moments.kept == [], "there is nothing to start from"
        files.lineage["1/0.manifest"] = frozenset()
        for n in range(5 * KEPT):
            files.create(f"1/chk-{n}/w0-1.state", b"")
        files.delete(["1/chk-0/w0-1.state"])
    files.create("1/later", b"")
    assert len(moments.kept) == KEPT
    assert all("1/later" not in moment.contents for moment in moments.kept)
    assert max(len(moment.contents) for moment in moments.kept) > 3 * KEPT, "from all of the run"


def test_a_trace_that_is_gone_is_missed_by_whoever_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    book = Book(prepared={b"sink|run|1|0|0": ["a"]}, committed={b"sink|run|1|0|0"})
    monkeypatch.setitem(__import__("search.watchers.checker", fromlist=["BOOKS"]).BOOKS, "here", book)
    Ledger("here").publish([b"sink|run|1|0|0"])
    Ledger("here").publish([b"sink|run|1|0|0"])
    assert book.wrong == [] and book.counts["published again"] == 1
    Ledger("here").settled([b"sink|run|1|0|0"])
    Ledger("here").publish([b"sink|run|1|0|0"])
    assert book.wrong == ["b'sink|run|1|0|0' is to be published, and was to be forgotten before"]
    book.taken.add(b"sink|run|1|0|0")
    with pytest.raises(FileNotFoundError, match="its records are lost"):
        Ledger("here").publish([b"sink|run|1|0|0"])


def test_a_start_that_never_ends_its_failures_says_the_last_one() -> None:
    bug = BUGS["a start from an older checkpoint takes what later ones need"]
    made = bug.tune(scenario(6, bug.program))
    refused = mock.patch.object(Ledger, "publish", _refusing)
    with refused:
        wrong = run_scenario(replace(made, faults=(), max_turns=4_000)).wrong
    assert any("restarted because of user" in one or "starts again and again" in one for one in wrong)


def _refusing(self: Ledger, prepared: Any) -> None:
    raise PermissionError("refused")


def test_a_folder_in_memory_is_known_by_its_url() -> None:
    assert MemoryFiles().url == "memory:" and WatchedFiles(url="memory:copy").url == "memory:copy"


def test_a_run_that_counts_for_nothing_does_not_count_at_the_next_start_either() -> None:
    """A job had finished, was begun anew and cancelled before it had learned of its first checkpoint, and then once more."""
    assert run_scenario(moving(scenario(20028))).wrong == []
