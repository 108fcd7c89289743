"""Waiting for what will come. How long it may take depends more on the machine than on the code: there is no hurry."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def waited(condition: Callable[[], Any], seconds: float = 120.0) -> bool:
    """Whether the condition holds within the time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True
