"""Tables and texts that commands print."""

from __future__ import annotations

import io
import re
import sys

import pytest

from tailrace.cli.showing import show, table

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
    show("before", table(ROWS))
    assert capsys.readouterr().out == PLAIN


def test_on_a_terminal_a_table_has_its_width_and_a_path_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("COLUMNS", "60"), ("TERM", "xterm"), ("NO_COLOR", "")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR")
    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    path = "/checkpoints/" + "x" * 100
    show(path, table(ROWS))
    first, *lines = out.getvalue().splitlines()
    assert first == path
    assert "\x1b[1m" in out.getvalue(), "names of columns stand out"
    assert len(lines) > 5 and all(len(re.sub(r"\x1b\[\d*m", "", line)) <= 60 for line in lines)
