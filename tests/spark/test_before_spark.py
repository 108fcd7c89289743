"""Errors that come before any request to Spark, and before anything is taken."""

from __future__ import annotations

from pathlib import Path

import pytest

import tailrace as tr
from tailrace.spark.start import allocation


def test_a_checkpoint_folder_that_cannot_be_made_is_reported_before_slots_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk of the folder is not mounted. The start held its slots, at a whole core, without a word."""
    (tmp_path / "disk").symlink_to(tmp_path / "not-mounted")

    def no_session(*args: object) -> None:
        raise AssertionError("Spark is asked for")

    monkeypatch.setattr(allocation, "session_of", no_session)
    env = tr.Environment(parallelism=1, checkpoint=tr.CheckpointConfig(tmp_path / "disk" / "checkpoints"))
    env.from_collection([1]).sink_to(tr.sinks.Print())
    with pytest.raises(
        tr.ConfigError, match=f"cannot be kept in .*: {tmp_path}/disk: is a link to {tmp_path}/not-mounted"
    ):
        env.execute("job")
