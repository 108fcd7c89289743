"""Sizes as text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.api.config import memory_bytes
from tailrace.elements.byte_texts import size_text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (14_000, "13.7 KiB"),
        ((1 << 20) - 1, "1 MiB"),
        (64 << 20, "64 MiB"),
        (5 << 40, "5120 GiB"),
    ],
)
def test_a_size_has_a_unit_of_1024(count: int, text: str) -> None:
    assert size_text(count) == text


@given(st.integers(1, 1 << 20), st.sampled_from(["MiB", "GiB"]))
def test_a_size_that_is_shown_is_one_that_may_be_set(count: int, unit: str) -> None:
    assert memory_bytes(f"{count} {unit}") == count << {"MiB": 20, "GiB": 30}[unit]
    assert memory_bytes(f"{count}{unit[0].lower()}") == memory_bytes(f"{count} {unit}")


@given(st.integers(0, 1 << 44))
def test_a_size_is_right_to_a_tenth_of_its_unit(count: int) -> None:
    number, unit = size_text(count).split()
    one = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}[unit]
    assert abs(float(number) * one - count) <= one * 0.05 + 1 and (unit == "GiB" or float(number) < 1024)
