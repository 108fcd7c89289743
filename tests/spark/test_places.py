"""Where DataFrames and results lie on their way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailrace.runtime.network import tls
from tailrace.runtime.network.binding import Binding
from tailrace.spark.data import places


class App:
    """As much of a Spark application as the driver's folder needs."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def folder(self) -> str:
        return str(self.path)


@pytest.fixture
def app(tmp_path: Path) -> Any:
    yield App(tmp_path)
    for path in [one for one in places._hosts if one.startswith(str(tmp_path))]:
        places._close(path)


def test_a_session_has_one_folder_that_the_driver_serves(app: Any) -> None:
    assert places.hosted_place(app, Binding("127.0.0.1")) == places.hosted_place(app, Binding("127.0.0.1"))


def test_a_job_under_tls_shares_no_folder_with_one_that_is_not(app: Any) -> None:
    """The first job of a session had none, and what later ones sent went in plain text, without a word."""
    plain = places.hosted_place(app, Binding("127.0.0.1"))
    secure = places.hosted_place(app, Binding("127.0.0.1", tls=tls.make()))
    assert plain.host is not None and secure.host is not None
    assert plain.host.tls is None and secure.host.tls is not None
    assert plain.url != secure.url
    assert places.hosted_place(app, Binding("127.0.0.1", tls=tls.make())) == secure, (
        "one certificate serves the session"
    )
