"""The page in a browser, from the server that users have: its headers, its events, its token."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.runtime.job import Job
from tailrace.ui.guard import Guard
from tailrace.ui.jobs import LocalJob
from tailrace.ui.server import PageServer

from .browser import needs_browser, running_browser
from .running import Runner, job_of

pytestmark = needs_browser


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Job, Runner]]]:
    monkeypatch.setenv("TAILRACE_CONTROL_DIR", str(tmp_path))
    made = [job_of("numbers", "11112222-aaaa"), job_of("letters", "33334444-bbbb")]
    yield made
    for job, _ in made:
        job._monitor.close()


@pytest.fixture
def server(jobs: list[tuple[Job, Runner]]) -> Iterator[PageServer]:
    server = PageServer(lambda: [LocalJob(job) for job, _ in jobs], Guard(), port=0)
    yield server
    server.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with running_browser() as found:
        yield found


@pytest.fixture
def page(browser: Any, server: PageServer) -> Iterator[Any]:
    page, errors = browser.new_page(), list[str]()
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda line: errors.append(line.text) if line.type in ("error", "warning") else None)
    yield page
    page.close()
    assert errors == []


def test_a_job_is_found_ordered_and_seen_to_end(page: Any, server: PageServer, jobs: list[tuple[Job, Runner]]) -> None:
    job, runner = jobs[0]
    page.goto(server.link())
    page.locator("main a", has_text="numbers").click()
    page.locator(f"main[data-job='{job.id}'] .chain").first.wait_for()
    assert "RUNNING" in page.locator(".status .state").inner_text() and page.locator(".chain").count() == 1
    page.get_by_role("button", name="Checkpoint", exact=True).click()
    page.locator("dialog button.primary").click()
    page.locator(".actions [role=status]", has_text="/checkpoints/7").wait_for()
    page.get_by_role("button", name="Cancel", exact=True).click()
    page.locator("dialog button.danger").click()
    page.locator(".status .state", has_text="CANCELLED").wait_for()
    assert runner.view.status is JobStatus.CANCELLED and jobs[1][1].view.status is JobStatus.RUNNING
    assert page.locator(".actions button:enabled").count() == 0


def test_the_page_of_a_job_in_one_file(page: Any, jobs: list[tuple[Job, Runner]], tmp_path: Path) -> None:
    jobs[1][0].save_page(tmp_path / "job.html")
    page.goto((tmp_path / "job.html").as_uri())
    page.locator("main[data-job='33334444-bbbb'] .chain").first.wait_for()
    assert page.locator("h1").inner_text() == "letters" and "parse" in page.locator("#operators").inner_text()
