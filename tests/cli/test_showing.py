"""Tables and texts that commands print."""

from __future__ import annotations

import io
import re
import sys

import pytest

from tailrace.cli.showing import FittingTable, show

ROWS = [
    ["operator", "tasks", "note"],
    ["map [red]x[/], :smile:", "2", ""],
    ["日本", "1,213", "a long note " * 20 + "end"],
]
PLAIN = f"""\
before

operator                tasks  note
map [red]x[/], :smile:      2
日本                    1,213  {"a long note " * 20}end
"""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("columns", ["20", "80", "300"])
def test_in_a_pipe_it_is_plain_text_as_wide_as_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    for name, value in (("COLUMNS", columns), ("FORCE_COLOR", "1"), ("TERM", "xterm-256color")):
        monkeypatch.setenv(name, value)
    show("before", FittingTable(ROWS))
    assert capsys.readouterr().out == PLAIN


def test_on_a_terminal_a_table_has_its_width_and_a_path_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("COLUMNS", "60"), ("TERM", "xterm"), ("NO_COLOR", "")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR")
    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    path = "/checkpoints/" + "x" * 100
    show(path, FittingTable(ROWS))
    first, *lines = out.getvalue().splitlines()
    assert first == path
    assert "\x1b[1m" in out.getvalue(), "names of columns stand out"
    assert len(lines) > 5 and all(len(re.sub(r"\x1b\[\d*m", "", line)) <= 60 for line in lines)


def test_on_a_narrow_terminal_columns_are_left_out_and_no_number_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("COLUMNS", "40"), ("LINES", "20"), ("TERM", "dumb")):
        monkeypatch.setenv(name, value)
    rows = [["operator", "in", "in/s", "out", "heaviest"]]
    rows += [
        ["the names of all visitors", "12,345,678", "12,345", "12,345,678", "3 (80%)"],
        ["x" * 30, "?", "1", "", ""],
    ]
    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    show(FittingTable(rows, ["no such column", "out", "in", "heaviest"]))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 40
    assert lines[0].split() == ["operator", "in/s", "heaviest"]
    assert any(line.split()[-3:] == ["12,345", "3", "(80%)"] for line in lines)
    assert lines[-1] == "(no room for: out, in)"


def test_where_no_column_is_spare_wide_cells_are_broken_and_no_column_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("COLUMNS", "60"), ("LINES", "20"), ("TERM", "dumb")):
        monkeypatch.setenv(name, value)
    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    rows = [["operator", "input", "watermark", "in subtask", "held back by"]]
    show(
        FittingTable(
            [*rows, ["match", "times of payments", "2026-11-27T03:39:03.437Z", "0", "subtask 0"]], ["in subtask"]
        )
    )
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 60
    assert lines[0].split() == ["operator", "input", "watermark", "held", "back", "by"]
    assert "times of payments" in lines[1] and "".join(
        line.split()[at] for line, at in ((lines[1], 4), (lines[2], 0))
    ) == ("2026-11-27T03:39:03.437Z")
