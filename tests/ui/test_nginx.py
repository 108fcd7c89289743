"""The page behind a real nginx, under a prefix: skipped by name where there is none."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.runtime.job import Job
from tailrace.ui.guard import Guard
from tailrace.ui.jobs import LocalJob
from tailrace.ui.server import PageServer
from tests.ports import free_ports

from .running import Browser, Runner, job_of

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
pytestmark = pytest.mark.skipif(NGINX is None, reason="no nginx: it takes Debian's package nginx-light")
ID = "11112222-bbbb"
CONFIG = """\
daemon off; pid {folder}/pid; error_log {folder}/error.log; worker_processes 1;
events {{}}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{port};
    location /teams/data/jobs/ {{ proxy_pass {url}/; proxy_buffering off; }}
  }}
}}
"""


@pytest.fixture
def proxied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Browser, Runner]]:
    """A page behind nginx, as a browser sees it."""
    monkeypatch.setenv("TAILRACE_CONTROL_DIR", str(tmp_path))
    job, runner = job_of("numbers", ID)
    assert isinstance(job, Job)
    server = PageServer(lambda: [LocalJob(job)], Guard(), port=0)
    port = free_ports(1)[0]
    config = tmp_path / "nginx.conf"
    config.write_text(CONFIG.format(folder=tmp_path, port=port, url=server.url))
    nginx = subprocess.Popen([str(NGINX), "-p", str(tmp_path), "-c", str(config), "-e", str(tmp_path / "first.log")])
    browser = Browser(server)
    browser.port = port
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                browser.request("GET", "/")
                break
            except OSError:
                assert nginx.poll() is None and time.monotonic() < deadline
                time.sleep(0.01)
        yield browser, runner
    finally:
        nginx.terminate()
        nginx.wait(20)
        server.close()
        job._monitor.close()


def test_the_page_its_files_its_events_and_its_orders_go_through_nginx_under_any_prefix(
    proxied: tuple[Browser, Runner],
) -> None:
    browser, _ = proxied
    at = "/teams/data/jobs"
    page = browser.get(f"{at}/")
    for address in ("static/app.js", "static/page.css"):
        assert address in page and f'"/{address}' not in page
        assert browser.request("GET", f"{at}/{address}")[0] == 200
    assert [one["id"] for one in browser.get(f"{at}/api/jobs")] == [ID]
    first, second = browser.events(f"{at}/api/jobs/{ID}/events", lambda found: len(found) == 2)
    assert first["job"]["id"] == ID and second["at"] >= first["at"], "nginx holds no event back"
    assert browser.post(f"{at}/api/jobs/{ID}/checkpoint")[0] == 200
    assert browser.request("POST", f"{at}/api/jobs/{ID}/checkpoint")[0] == 403, "without the token"
