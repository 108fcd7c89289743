"""The server of a page, over real connections: what it answers, to whom, and how often it computes."""

from __future__ import annotations

import http.client
import math
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

import tailrace as tr
from tailrace.cli.main import app as cli
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.coordinator.view.job_snapshot import JobSnapshot
from tailrace.errors import ConfigError
from tailrace.log import log
from tailrace.runtime.job import Job
from tailrace.runtime.network.tls import AUTHORITY, CERTIFICATE, KEY, for_browsers, make
from tailrace.ui import app
from tailrace.ui.export import as_html
from tailrace.ui.guard import Guard
from tailrace.ui.jobs import LocalJob, MachineJobs, NotAnswered
from tailrace.ui.openapi import LogLook, StackLook
from tailrace.ui.server import PageServer

from .running import Browser, Runner, job_of

ID = "11112222-aaaa"


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Job, Runner]]:
    monkeypatch.setenv("TAILRACE_CONTROL_DIR", str(tmp_path))
    job, runner = job_of("numbers", ID)
    yield job, runner
    job._monitor.close()


@pytest.fixture
def browser(running: tuple[Job, Runner]) -> Iterator[Browser]:
    server = PageServer(lambda: [LocalJob(running[0])], Guard(frozenset({"jobs.example"})), port=0)
    yield Browser(server)
    server.close()


def test_a_page_lists_jobs_and_shows_snapshots(browser: Browser) -> None:
    [listed] = browser.get("/api/jobs")
    assert (listed["id"], listed["name"], listed["status"], listed["restarts"]) == (ID, "numbers", "RUNNING", 0)
    assert listed["link"] == f"#job={ID}"
    shot = msgspec.convert(browser.get(f"/api/jobs/{ID}"), JobSnapshot)
    assert shot.job.records_in is not None and shot.subtasks is None
    shot = msgspec.convert(browser.get(f"/api/jobs/{ID}?subtasks=1"), JobSnapshot)
    assert shot.subtasks is not None
    assert browser.get("/api/jobs/numbers")["job"]["id"] == browser.get(f"/api/jobs/{ID[:4]}")["job"]["id"] == ID
    status, body, _ = browser.request("GET", "/api/jobs/other")
    assert (status, body["error"]) == (404, "there is no job 'other' here; it may have ended")


def test_keys_stacks_and_the_log_are_there_on_request(browser: Browser, running: tuple[Job, Runner]) -> None:
    job, runner = running
    log.warning("job %r: it is slow", "numbers", extra=job._monitor.log.fields())
    for _ in range(2):
        assert browser.get(f"/api/jobs/{ID}/keys") == {"keys": {"parse": [{"key": "'a'", "share": 1.0}]}}
    assert runner.inspections == 1, "the workers look once in some seconds, however many wish to see it"
    assert browser.get(f"/api/jobs/{ID}")["operators"]["parse"]["heaviest_keys"] == [{"key": "'a'", "share": 1.0}]
    assert browser.get(f"/api/jobs/{ID}/stacks")["workers"] == []
    [line] = browser.get(f"/api/jobs/{ID}/logs")["lines"]
    assert (line["text"], line["level"], line["attempt"]) == ("job 'numbers': it is slow", "WARNING", 0)
    msgspec.convert(browser.get(f"/api/jobs/{ID}/logs"), LogLook)
    msgspec.convert(browser.get(f"/api/jobs/{ID}/stacks"), StackLook)


def test_a_page_has_the_certificate_of_the_folder_and_none_that_was_made_for_a_job(
    running: tuple[Job, Runner], tmp_path: Path
) -> None:
    made = make()
    for name, text in zip((CERTIFICATE, KEY, AUTHORITY), made.texts(), strict=True):
        (tmp_path / name).write_text(text)
    assert for_browsers(None) is for_browsers("1") is None
    server = PageServer(lambda: [LocalJob(running[0])], Guard(), port=0, tls=for_browsers(str(tmp_path)))
    try:
        context = ssl.create_default_context(cadata=made.authority)
        context.check_hostname = False
        port = int(server.url.rpartition(":")[2])
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=20, context=context)
        connection.request("GET", f"/api/jobs/{ID}")
        assert server.url.startswith("https://") and connection.getresponse().status == 200
        connection.close()
        with pytest.raises(ssl.SSLError):
            http.client.HTTPSConnection("127.0.0.1", port, timeout=20).request("GET", "/")
    finally:
        server.close()


def test_a_snapshot_is_made_once_a_second_for_all_and_not_at_all_where_nobody_looks(
    browser: Browser, running: tuple[Job, Runner], monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = running[1]
    time.sleep(0.05)
    assert runner.looks == 0, "nobody has looked"
    made = _count_snapshots(running[0], monkeypatch)
    first = [browser.get(f"/api/jobs/{ID}")["at"] for _ in range(5)]
    assert len(set(first)) == 1 and made() == 1
    monkeypatch.setattr(app, "EVERY", 3600.0)
    viewers = [threading.Thread(target=browser.events, args=(f"/api/jobs/{ID}/events", bool)) for _ in range(4)]
    for one in viewers:
        one.start()
    for one in viewers:
        one.join(20)
    assert made() == 1


def _count_snapshots(job: Job, monkeypatch: pytest.MonkeyPatch) -> Any:
    maker = job._monitor.snapshots
    make, calls = maker.make, []

    def counted(*args: Any, **options: Any) -> JobSnapshot:
        calls.append(args)
        return make(*args, **options)

    monkeypatch.setattr(maker, "make", counted)
    return lambda: len(calls)


def test_events_bring_snapshots_until_the_job_has_ended(
    browser: Browser, running: tuple[Job, Runner], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "EVERY", 0.02)

    def until(found: list[Any]) -> bool:
        if len(found) == 2:
            running[1].end(JobStatus.FINISHED)
        return bool(found) and found[-1]["job"]["status"] == "FINISHED"

    found = browser.events(f"/api/jobs/{ID}/events", until)
    assert len(found) > 2
    assert found[-1]["sentence"] == "The job has finished."
    assert browser.get(f"/api/jobs/{ID}")["job"]["status"] == "FINISHED", "it is shown as long as its program lives"


def test_orders_need_the_token(browser: Browser) -> None:
    assert browser.post(f"/api/jobs/{ID}/checkpoint")[1]["path"] == "/checkpoints/7"
    for wrong in ("", "x" * 22):
        status, body = browser.post(f"/api/jobs/{ID}/cancel", X_Tailrace_Token=wrong)
        assert status == 403 and "token" in body["error"]
    assert browser.get("/api/jobs")[0]["status"] == "RUNNING"
    assert browser.post(f"/api/jobs/{ID}/savepoint") == (409, {"error": "no savepoint of this job"})
    assert browser.post(f"/api/jobs/{ID}/explode")[0] == 404
    assert browser.request("GET", f"/api/jobs/{ID}/cancel")[0] == 405
    assert browser.post(f"/api/jobs/{ID}/cancel") == (200, {"status": "CANCELLED"})


def test_a_stop_is_answered_when_the_job_has_ended(browser: Browser) -> None:
    assert browser.post(f"/api/jobs/{ID}/stop") == (200, {"status": "FINISHED"})


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ({"Host": "evil.example"}, "the host 'evil.example' is none of this page"),
        ({"Host": "evil.example:4140"}, "is none of this page"),
        ({"Host": "["}, "is none of this page"),
        ({"Origin": "http://evil.example"}, "comes from a page of 'http://evil.example'"),
        ({"Origin": "http://localhost:1"}, "comes from a page of 'http://localhost:1'"),
        ({"Origin": "null"}, "comes from a page of 'null'"),
        ({"Sec_Fetch_Site": "cross-site"}, "comes from another site"),
        ({"Sec_Fetch_Site": "same-site"}, "comes from another site"),
    ],
)
def test_requests_from_elsewhere_are_refused(browser: Browser, headers: dict[str, str], why: str) -> None:
    status, body = browser.post(f"/api/jobs/{ID}/cancel", **headers)
    assert status == 403 and why in body["error"]
    assert browser.get("/api/jobs")[0]["status"] == "RUNNING"


def test_another_name_of_this_machine_reads_nothing(browser: Browser) -> None:
    status, body, _ = browser.request("GET", f"/api/jobs/{ID}", Host="rebound.example")
    assert status == 403 and "none of this page" in body["error"]


def test_a_proxy_has_its_own_name_and_any_prefix(browser: Browser) -> None:
    """The proxy takes its prefix away, as Spark's and nginx do; no answer has an address that begins with a slash."""
    own = f"http://127.0.0.1:{browser.port}"
    for headers in (
        {"Host": "jobs.example", "Origin": "https://jobs.example"},
        {"Origin": "https://jobs.example"},
        {"Origin": own},
    ):
        assert browser.post(f"/api/jobs/{ID}/checkpoint", **headers)[0] == 200
    body = browser.get("/api/jobs", Host="jobs.example")
    assert not any(str(value).startswith("/") for value in body[0].values())


def test_nothing_is_loaded_from_outside_and_no_other_site_shows_the_page(browser: Browser) -> None:
    for path in ("/", "/api/jobs", "/api/openapi.json", "/nowhere"):
        _, _, headers = browser.request("GET", path)
        assert headers["content-security-policy"].startswith("default-src 'self';"), path
        assert "access-control-allow-origin" not in headers


def test_a_page_for_reading_gives_no_orders(running: tuple[Job, Runner]) -> None:
    server = PageServer(lambda: [LocalJob(running[0])], Guard(read_only=True), port=0)
    try:
        browser = Browser(server)
        assert "token" not in server.link()
        assert browser.post(f"/api/jobs/{ID}/cancel") == (403, {"error": "this page is read-only"})
        assert browser.get(f"/api/jobs/{ID}")["job"]["status"] == "RUNNING"
    finally:
        server.close()


def test_the_jobs_of_a_machine_are_on_one_page(running: tuple[Job, Runner]) -> None:
    """The jobs are reached through their sockets, as by the command line."""
    other, _ = job_of("letters", "33334444-bbbb")
    server = PageServer(MachineJobs(), Guard(), port=0)
    try:
        browser = Browser(server)
        assert {one["name"] for one in browser.get("/api/jobs")} == {"numbers", "letters"}
        assert browser.get("/api/jobs/33334444-bbbb")["job"]["name"] == "letters"
        assert browser.post(f"/api/jobs/{ID}/checkpoint")[1]["id"] == 7
        assert [who.who()["name"] for who in MachineJobs(["letters"])()] == ["letters"]
        assert [who.who()["name"] for who in MachineJobs(["1111"])()] == ["numbers"]
        other._monitor.close()
        status, body = browser.post("/api/jobs/33334444-bbbb/checkpoint")
        assert status in (404, 503) and "ended" in body["error"]
    finally:
        server.close()


def test_a_port_that_is_taken_is_refused(browser: Browser) -> None:
    with pytest.raises(ConfigError, match=f"cannot listen on port {browser.port}"):
        PageServer(list, Guard(), port=browser.port)


def test_what_is_no_port_is_refused_where_it_is_written() -> None:
    for wrong in ("yes", -1, 1 << 16, 1.5):
        with pytest.raises(ConfigError, match="ui must be True, False or a port"):
            tr.Environment(ui=wrong)  # type: ignore[arg-type]


def test_a_job_that_does_not_answer_hides_no_other(running: tuple[Job, Runner]) -> None:
    class Silent:
        def who(self) -> dict[str, Any]:
            raise NotAnswered("the job has not begun")

        def request(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
            raise NotAnswered("the job has not begun")

    server = PageServer(lambda: [Silent(), LocalJob(running[0]), Silent()], Guard(), port=0)
    try:
        browser = Browser(server)
        assert [one["id"] for one in browser.get("/api/jobs")] == [ID]
        assert browser.get(f"/api/jobs/{ID}")["job"]["id"] == ID
    finally:
        server.close()


def test_the_command_lets_other_machines_in_only_under_names_that_are_given() -> None:
    ended = CliRunner().invoke(cli, ["ui", "--host", "0.0.0.0"])
    assert ended.exit_code == 2
    assert "--host 0.0.0.0 lets other machines in: name those under which they reach this one" in ended.output


def test_the_command_reports_a_port_that_is_taken(browser: Browser) -> None:
    ended = CliRunner().invoke(cli, ["ui", "--port", str(browser.port)])
    assert ended.exit_code == 2
    assert f"cannot listen on port {browser.port}" in ended.output


def test_each_scrape_is_of_this_moment(browser: Browser) -> None:
    text = browser.get("/metrics")
    assert "tailrace_operator_waiting_bytes{" in text
    assert 'tailrace_job_status{status="RUNNING",tailrace_job="numbers"} 1.0' in text
    assert browser.post(f"/api/jobs/{ID}/cancel")[0] == 200
    assert 'tailrace_job_status{status="CANCELLED",tailrace_job="numbers"} 1.0' in browser.get("/metrics")


def test_what_is_no_finite_number_is_null_in_json(running: tuple[Job, Runner], monkeypatch: pytest.MonkeyPatch) -> None:
    job, _ = running
    wrong = {"total": math.nan, "least": -math.inf, "most": math.inf}
    monkeypatch.setattr(LocalJob, "request", _with_metric(LocalJob.request, wrong))
    server = PageServer(lambda: [LocalJob(job)], Guard(), port=0)
    try:
        shot = Browser(server).get(f"/api/jobs/{job.id}")
        text = as_html(LocalJob(job).request({"verb": "snapshot"}, 5))
    finally:
        server.close()
    assert shot["operators"]["parse"]["metrics"]["level"] == dict.fromkeys(wrong)
    assert '"least":null' in text.partition('id="tailrace-places"')[0]


def _with_metric(request: Any, metric: dict[str, float]) -> Any:
    """The request to a job, with one more figure of an operator in its snapshots."""

    def made(job: LocalJob, wish: dict[str, Any], seconds: float) -> dict[str, Any]:
        answer: dict[str, Any] = request(job, wish, seconds)
        if wish["verb"] == "snapshot":
            answer["operators"]["parse"]["metrics"] = {"level": metric}
        return answer

    return made
