"""Which run holds a job, by the claims that its folder has."""

from __future__ import annotations

import pytest

from tailrace.state.job_holder import Holder, barred_by, overtaken_by

OURS, OTHERS = Holder(3, "ours"), Holder(3, "other")


@pytest.mark.parametrize(
    ("newest", "barred"),
    [
        (None, False),
        (Holder(3, "other", lives=True), True),
        (Holder(3, "other"), False),
        (Holder(3, "ours", lives=True), False),
        (Holder(3, None, lives=True), False),
    ],
    ids=["nobody", "a live one", "one that may live elsewhere", "ourselves", "one that cannot be read"],
)
def test_a_start_takes_the_job_from_nobody_who_is_known_to_live(newest: Holder | None, barred: bool) -> None:
    assert barred_by("ours", newest) == (newest if barred else None)


def test_a_run_is_overtaken_by_the_first_claim_of_another_one() -> None:
    assert overtaken_by("ours", []) is None
    assert overtaken_by("ours", [OURS, Holder(4, None)]) is None, (
        "a claim of ours that seemed to fail, and one half made"
    )
    assert overtaken_by("ours", [OURS, OTHERS, Holder(9, "third")]) == OTHERS


def test_a_coordinator_is_overtaken_by_its_successors_and_by_none_that_came_before_it() -> None:
    earlier, later = Holder(4, "ours", term=1), Holder(5, "ours", term=3)
    assert overtaken_by("ours", [earlier, later], term=2) == later
    assert overtaken_by("ours", [earlier, later], term=3) is None


def test_claims_are_read_no_further_than_the_one_that_decides() -> None:
    read = []

    def claims():  # type: ignore[no-untyped-def]
        for one in (OURS, OTHERS, Holder(9, "third")):
            read.append(one)
            yield one

    assert overtaken_by("ours", claims()) == OTHERS
    assert read == [OURS, OTHERS]
