"""A store that takes requests and never answers them: each comes to an end, and the next one is made anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tailrace.storage import time_limits
from tailrace.storage.filesystem import Folder
from tailrace.storage.opening import open_folder
from tests.buckets import ENVIRONMENT, new_bucket, options, serving
from tests.runtime.test_outages import Proxy


def written(folder: Folder) -> None:
    writer = folder.writer("state")
    writer.append(b"12")
    writer.close()


ASKED: list[tuple[str, Callable[[Folder], Any]]] = [
    ("create", lambda folder: folder.create("new", b"1")),
    ("write", written),
    ("read", lambda folder: folder.read("there")),
    ("list", lambda folder: folder.entries()),
    ("delete", lambda folder: folder.delete(["there"])),
]


def test_no_request_waits_for_ever_and_when_the_store_is_back_all_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time-out of the clients of S3 covers a write whose body the store has not requested yet."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    with serving() as endpoint:
        host, port = endpoint.removeprefix("http://").split(":")
        way, bucket = Proxy((host, int(port))), new_bucket(endpoint)
        folder = open_folder(f"s3://{bucket}/checkpoints", options(way.url))
        folder.create("there", b"1")
        way.set("hanging")
        monkeypatch.setattr(time_limits, "ANSWER_SECONDS", 0.1)
        for what, ask in ASKED:
            with pytest.raises(OSError, match=r"no answer for 0\.1"):
                ask(folder)
                pytest.fail(f"{what} was answered")
        way.set("refused")
        monkeypatch.setattr(time_limits, "ANSWER_SECONDS", 30.0)
        way.set("through")
        folder.create("later", b"2")
        assert folder.read("later") == b"2"
        written(folder)
        assert folder.read("state") == b"12"
        way.close()
