"""The pictures of the page in the guide: `python -m tests.ui.pictures` makes them anew, in two minutes. They show the jobs
of `trial`, the first of which loses a worker."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import tailrace as tr
from tailrace.spark.cluster.session import local_session

from .browser import running_browser
from .trial import SLOTS, start

IMAGES = Path(__file__).parents[2] / "docs" / "images"
WATCHED = 60_000
"""Milliseconds for which the page is open before it loses a worker: its charts have something to show."""
PATIENCE = 300_000


def main() -> None:
    """Starts the jobs, loses a worker, and takes the pictures."""
    folder = Path(tempfile.mkdtemp(prefix="pictures-"))
    jobs = start(folder, local_session(SLOTS + 2), tr.StandbyConfig())
    try:
        with running_browser() as browser:
            page = browser.new_page(viewport={"width": 1280, "height": 860})
            _take(page, *jobs[:2])
    finally:
        for job in jobs:
            job.cancel()
            job.await_termination(60)


def _take(page: Any, visits: Any, orders: Any) -> None:
    page.set_default_timeout(PATIENCE)
    page.goto(visits._page.link(visits.id))
    page.locator("#status", has_text="is busy").wait_for()
    page.wait_for_timeout(WATCHED)
    os.kill(visits._runner.machine.roster.slots[0].hello.pid, signal.SIGKILL)
    page.locator("#slices", has_text="worker was replaced in").wait_for()
    page.request.get(f"{visits.ui}/api/jobs/visits/keys")
    page.locator("#status", has_text="of its time goes to key").wait_for()
    page.screenshot(path=IMAGES / "page.png")
    page.emulate_media(color_scheme="dark")
    page.locator("#slices").screenshot(path=IMAGES / "page-replaced.png")
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 1280, "height": 600})
    page.goto(orders._page.link(orders.id))
    page.locator("#status", has_text="is held back by").wait_for()
    page.locator("#graph .chain").first.wait_for()
    page.screenshot(path=IMAGES / "page-event-time.png")


if __name__ == "__main__":
    main()
