"""Random values through every conversion, both forms and both kinds of keys, against a plain model. The command that does
more of it is `python -m search.values --seeds A:B`."""

from __future__ import annotations

from typing import Any

import pytest

from search import values


@pytest.mark.parametrize("name", list(values.CASES))
def test_values_are_what_a_plain_model_says(name: str) -> None:
    for seed in range(25 if name in ("conversion", "cast") else 8):
        values.run_case(seed, name)


def test_the_command_tells_the_seed_of_what_it_finds(monkeypatch: Any, capsys: Any) -> None:
    assert values.main(["--seeds", "0:3", "--only", "cast"]) == 0
    monkeypatch.setitem(values.CASES, "cast", lambda random: values.check(False, "changed", random.random() < 2))
    assert values.main(["--seeds", "7", "--only", "cast"]) == 1
    found = capsys.readouterr()
    assert "seed 7 failed; again with: python -m search.values --seeds 7:8 --only cast" in found.err
    assert "1 cases, 1 failed" in found.out
