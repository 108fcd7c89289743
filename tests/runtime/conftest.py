"""Workers of these tests are threads of the process that runs the tests."""

from __future__ import annotations

import pytest

from tailrace.runtime.worker import heartbeat


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is not back three seconds after its job ends its process, and that is ours. A machine that does much
    else may keep one for longer."""
    monkeypatch.setattr(heartbeat, "GRACE_SECONDS", 60.0)
