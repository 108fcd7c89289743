"""The reports of the stress scenarios are right: they notice wrong output, and are written down."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("benchmarks.stress")

from benchmarks.stress import Setting, frames
from benchmarks.stress.running import KEYS, wrong
from benchmarks.stress.scenarios import SCENARIOS


def output(records: int) -> list[tuple[int, int, int]]:
    found, counts, totals = [], [0] * KEYS, [0] * KEYS
    for number in range(records):
        key = number % KEYS
        counts[key], totals[key] = counts[key] + 1, totals[key] + number
        found.append((key, counts[key], totals[key]))
    return found


def test_right_output_is_right_in_whatever_order() -> None:
    assert wrong(output(5 * KEYS + 7)) == wrong(reversed(output(5 * KEYS + 7))) == ""


def test_output_that_is_missing_doubled_or_wrong_is_seen() -> None:
    found = output(5 * KEYS)
    assert "place 2" in wrong(found[:KEYS] + found[KEYS + 1 :])
    assert "place 4" in wrong([*found, found[3 * KEYS - 1]])
    key, count, total = found[-1]
    assert f"key {key}" in wrong([*found[:-1], (key, count, total + 1)])
    assert wrong(output(KEYS - 1)) == f"only {KEYS - 1} of {KEYS} keys"


def test_malformed_frames_are_refused_or_read() -> None:
    """As `stress frames`, which takes a million."""
    found = frames.malformed(Setting("frames", None, "", {"frames": "3000"}))
    assert found["wrong"] == "" and found["messages"]["ProtocolViolation"] > 1000, found


def test_all_scenarios_are_described() -> None:
    text = (Path(__file__).parents[2] / "benchmarks/README.md").read_text()
    section = text[text.index("## Stress") : text.index("## Loops")]
    described = [name for row in re.findall(r"^\| (`.*?) \|", section, re.M) for name in re.findall("`(.+?)`", row)]
    assert described == list(SCENARIOS)
