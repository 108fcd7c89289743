"""Durations as users write them."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from fractions import Fraction
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tailrace as tr
from tailrace.elements.durations import span_micros, span_seconds
from tailrace.elements.timestamps import micros
from tailrace.runtime.driver.machine_settings import settings_of

UNITS = {
    "us": "microseconds", "microsecond": "microseconds", "ms": "milliseconds", "s": "seconds", "sec": "seconds",
    "second": "seconds", "m": "minutes", "min": "minutes", "minute": "minutes", "h": "hours", "hour": "hours", "d": "days",
    "day": "days", "w": "weeks", "week": "weeks",
}  # fmt: skip


@given(
    st.lists(
        st.tuples(st.integers(0, 999), st.sampled_from(sorted(UNITS)), st.booleans(), st.sampled_from(["", " "])),
        min_size=1,
    )
)
def test_a_text_is_the_sum_of_its_parts(parts: list[tuple[int, str, bool, str]]) -> None:
    text, whole = "", timedelta()
    for number, unit, many, gap in parts:
        name = unit + "s" if many and len(unit) > 2 else unit
        text += f"{gap}{number}{gap}{name.upper() if number % 2 else name}"
        whole += timedelta(**{UNITS[unit]: number})
    assert span_micros(text) == whole // timedelta(microseconds=1)


DECIMALS = st.decimals(0, 5000, places=6).map(lambda number: f"{number.normalize():f}")


@given(
    st.lists(st.tuples(DECIMALS, st.sampled_from(sorted(UNITS)), st.sampled_from(["", " "])), min_size=1, max_size=4)
)
def test_a_text_with_decimals_is_exact_and_what_pandas_reads(parts: list[tuple[str, str, str]]) -> None:
    text = " ".join(f"{number}{gap}{unit}" for number, unit, gap in parts)
    exact = sum(Fraction(number) * (timedelta(**{UNITS[unit]: 1}) // timedelta.resolution) for number, unit, _ in parts)
    if exact.denominator == 1:
        assert span_micros(text) == exact
        if exact:
            assert tr.Tumbling(text) == tr.Tumbling(timedelta(microseconds=int(exact)))
        read = pd.Timedelta(text.replace("week", "W"))
        assert abs(read.value - exact * 1000) < 500, "pandas reads floats"
    else:
        with pytest.raises(TypeError, match="a whole number of microseconds"):
            span_micros(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5 minutes", 300),
        ("1h30m", 5400),
        ("1 hour 30 minutes", 5400),
        ("0.1s", 0.1),
        (".5 s", 0.5),
        ("1.5 min", 90),
        ("s5", None),
    ],
)
def test_how_durations_are_written(text: str, expected: float | None) -> None:
    if expected is None:
        with pytest.raises(TypeError, match="a duration must be"):
            span_seconds(text)
    else:
        assert span_seconds(text) == expected


@given(st.integers(-(10**9), 10**9) | st.floats(-1e9, 1e9) | st.timedeltas(timedelta(-(10**6)), timedelta(10**6)))
def test_what_is_no_text_is_as_it_was(value: Any) -> None:
    assert span_micros(value) == micros(value)


WRONG: list[Any] = [
    "", " ", "5", "minutes", "5 minutes ago", "-5 s", "5,5 s", "1e3 s", "1 month", "2 years", "5 s,", "0.5 us", "1 s 5",
    True, None, b"5 s", [5], datetime(2024, 1, 1), date(2024, 1, 1), float("nan"), float("inf"), "9" * 30 + " weeks",
]  # fmt: skip


@pytest.mark.parametrize("value", WRONG, ids=repr)
def test_what_is_no_duration_is_refused(value: Any) -> None:
    with pytest.raises((TypeError, OverflowError)):
        span_micros(value)
    with pytest.raises(tr.GraphError, match=r"^Tumbling: "):
        tr.Tumbling(value)
    with pytest.raises(tr.ConfigError, match=r"^FixedDelay: delay must be"):
        tr.FixedDelay(delay=value)


def test_a_text_is_taken_wherever_a_duration_is() -> None:
    assert tr.Tumbling("5 minutes") == tr.Tumbling(300) == tr.Tumbling(timedelta(minutes=5))
    assert tr.Sliding("1h", "15 min", offset="1 min") == tr.Sliding(3600, 900, offset=60)
    text = tr.CheckpointConfig("x", interval="5s", timeout="1h", min_pause="1 ms", alignment_timeout="2 min")
    number = tr.CheckpointConfig("x", interval=5, timeout=3600, min_pause=0.001, alignment_timeout=120)
    assert settings_of(text) == settings_of(number)
    env = tr.Environment(parallelism=1, slot_timeout="2 minutes", restart=tr.FailureRate(3, "5 minutes", "1 s"))
    assert env.slot_timeout == 120
    stream = env.from_collection([1, 61]).assign_timestamps(float, "10 s", idle_after="1 min")
    counts = stream.key_by(lambda n: 0).window(tr.Tumbling("1 minute"), allowed_lateness="1 s").count()
    out = counts.sink_to(tr.sinks.Collect())
    tr.testing.run(env).await_termination("5 minutes")
    assert [(row.start, row.count) for row in out.result()] == [(0, 1), (60, 1)]
