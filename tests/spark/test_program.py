"""Classes that are written in the program itself, beside the dataflow, as everybody writes them first."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

SHOP = Path(__file__).with_name("shop.py").read_text()


def program(folder: Path, text: str, *args: str) -> subprocess.CompletedProcess[str]:
    (folder / "shop.py").write_text(text)
    command = [sys.executable, "shop.py", *args]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=280)


def lines(folder: Path) -> list[str]:
    return [line for file in folder.glob("part-*") for line in file.read_text().splitlines()]


@pytest.mark.spark
@pytest.mark.timeout(600)  # two programs, each with a Spark of its own
def test_classes_of_a_script_are_records_keys_feedback_and_state_and_its_next_version_reads_them(
    tmp_path: Path,
) -> None:
    """The job refers to the classes of the script by value; records and state hold their names. The script is killed. Its
    next version has another field in the class of a state, and only looks different in the classes of keys; it goes on from
    the checkpoint at another parallelism. (A version whose class of a key has a field more is refused:
    `tests/state/test_key_classes.py`.)"""
    died = program(tmp_path, SHOP, "die", "2")
    assert died.returncode == -signal.SIGKILL, died.stderr[-3000:]
    changed = SHOP.replace("# MORE", 'more: str = "new"').replace(
        "PERSON = 1\n    FIRM = 2", "FIRM = 2\n    PERSON = 1"
    )
    done = program(tmp_path, changed, "go-on", "3")
    assert done.returncode == 0, done.stderr[-3000:]

    orders = lines(tmp_path / "orders")
    # Of each of three customers: 200 orders, and 150 that went round again.
    assert sorted(int(line[1:].partition(",")[0]) for line in orders) == sorted([*range(1, 201 + 150)] * 3)
    assert any(line.endswith("'new')") for line in orders)

    customers = lines(tmp_path / "customers")
    one_of = {("PERSON", n) for n in range(3)} | {("FIRM", n) for n in range(3)}
    expected = [str((*key, i)) for key in one_of for i in range(1, 151)]
    expected += [str((kind, i)) for kind in ("PERSON", "FIRM") for i in range(1, 451)]
    assert sorted(line for line in customers if "-" not in line) == sorted(expected)
    timers = [line for line in customers if "-" in line]
    assert len(timers) == 6 * 3, timers
