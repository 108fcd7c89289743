"""Chromium for the tests of the page. A test that needs it is skipped, with this as its reason, where there is none."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
MISSING = CHROMIUM is None or importlib.util.find_spec("playwright") is None
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

needs_browser = [
    pytest.mark.browser,
    pytest.mark.skipif(MISSING, reason="no browser: it takes playwright and Debian's package chromium"),
]
"""Marks of a module with such tests."""


@contextmanager
def running_browser() -> Iterator[Any]:
    """A browser. Its event loop is that of this thread: no test beside it may run another one."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()
