"""The shape of a snapshot, by snapshots of real jobs. The page is built against these files."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tailrace.coordinator.view.diagnosis import findings_of, health_of
from tailrace.coordinator.view.job_snapshot import JobSnapshot

FILES = sorted((Path(__file__).parent / "snapshots").glob("*.json"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_snapshots_of_real_jobs_have_the_shape_of_today(file: Path) -> None:
    held = msgspec.json.decode(file.read_bytes(), type=JobSnapshot)
    again = msgspec.to_builtins(held)
    assert again == msgspec.json.decode(file.read_bytes()), "a field is not in the file, or not in the shape"
    uids = {one.uid for one in held.graph.operators}
    assert held.operators.keys() == uids
    assert {uid for edge in held.graph.edges for uid in (edge.source, edge.target)} <= uids
    assert {one.scope for one in held.graph.operators} <= {"", *(one.id for one in held.graph.scopes)}
    assert findings_of(held) == held.findings and health_of(held.findings) == held.health
    assert held.sentence == (held.findings[0].text if held.findings else "Nothing holds the job.")


def test_there_are_snapshots_of_what_a_page_must_show() -> None:
    held = {file.stem: msgspec.json.decode(file.read_bytes(), type=JobSnapshot) for file in FILES}
    assert any(edge.feedback for edge in held["loop"].graph.edges)
    assert held["loop"].loops[0].feedback_total
    assert held["slow"].sentence.startswith("`score` is busy")
    assert held["failed-checkpoint"].checkpoints is not None
    assert held["failed-checkpoint"].checkpoints.failures[-1].reason == "it took longer than its timeout of 1 s"
    assert held["restarted"].failures[-1].line is not None
    assert held["restarted"].job.restarts == held["restarted"].failures[-1].restart == 2
    assert held["failed"].job.status == "FAILED"
    assert held["failover"].failures[-1].worker == 1
    assert held["starting"].operators["score"].records_in is None, "no report yet"
