"""A running job as text for a terminal: its progress, operators, subtasks and slices."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from tailrace.elements.sizes import size_text
from tailrace.elements.timestamps import isoformat
from tailrace.passwords import hide_passwords
from tailrace.runtime.driver.progressline import line_of

_WIDE = 1 << 16
"""Width of a table in a pipe, in columns: no line is broken there."""


def echo(text: str, err: bool = False) -> None:
    """Prints a text, without the passwords of URLs in it."""
    typer.echo(hide_passwords(text), err=err)


def job_parts(shown: dict[str, Any]) -> list[str | Table]:
    """The answer of a job to `show`, as texts and tables."""
    lines = [f"{shown['name']} ({shown['id'][:8]}), process {shown['pid']}"]
    progress = shown["progress"]
    if progress is None:
        lines.append(f"{shown['status']}; no worker has reported yet")
    else:
        figures = progress["tailrace"]
        lines += line_of(shown["status"], figures, progress["inputRowsPerSecond"], figures["busyShare"])
        last = (figures["checkpoints"] or {}).get("last")
        lines += [] if last is None else [last["path"]]
        lines += [_stall_text(one) for one in figures.get("stalled", ())]
    refused = shown.get("refused_connections")
    if refused:
        lines.append(f"refused connections: {', '.join(f'{many:,} ({why})' for why, many in refused.items())}")
    subtasks = shown.get("subtasks", ())
    parts: list[str | Table] = [
        hide_passwords("\n".join(lines)),
        _operators(shown["operators"]),
        *_subtasks(subtasks),
        *(_event_times(subtasks) if _has_watermark(progress) else []),
    ]
    return [*parts, *_slices(shown["slices"], replaced=shown["standby"] is not None)]


def _operators(operators: list[dict[str, Any]]) -> Table:
    """A line for each operator, its subtasks together. Where subtasks can be compared, it names the busiest one."""
    rows = [["operator", "tasks", "in", "out", "busy s", "waiting bytes", "state entries"]]
    compared = any(one.get("heaviest") for one in operators)
    rows[0] += ["heaviest"] if compared else []
    for one in operators:
        figures = [one["parallelism"], one["records_in"], one["records_out"], one["busy_seconds"]]
        figures += [one["waiting_bytes"], one["state_entries"]]
        rows.append([one["name"], *map(_figure, figures)])
        if compared:
            heaviest = one.get("heaviest")
            rows[-1].append(f"{heaviest['subtask']} ({heaviest['share']:.0%})" if heaviest else "")
    return table(rows)


def _subtasks(subtasks: Sequence[dict[str, Any]]) -> list[Table]:
    """A line for each subtask."""
    if not subtasks:
        return []
    rows = [["operator", "subtask", "in", "out", "busy s", "unread", "unsent", "state entries", "step s", "age s"]]
    rows[0] += ["watermark", "waits for"]
    names = "records_in", "records_out", "busy_seconds", "queued_bytes", "unsent_bytes", "state_entries"
    for one in subtasks:
        figures = [one[name] for name in (*names, "under_way_seconds", "age_seconds")]
        waits_for = "" if one["under_way_seconds"] else one["waits_for"]
        rows.append([one["vertex"], str(one["subtask"]), *map(_figure, figures), one["watermark"], waits_for])
    return [table(rows)]


def _has_watermark(progress: dict[str, Any] | None) -> bool:
    return progress is not None and progress["tailrace"]["watermark"] is not None


def _event_times(subtasks: Sequence[dict[str, Any]]) -> list[Table]:
    """Event time on each input of an operator, in the subtask that is farthest behind, and the upstream subtask that holds
    it back there."""
    lowest: dict[tuple[str, str], tuple[str, int, int]] = {}
    for one in subtasks:
        for source in one["inputs"]:
            found = source["watermark"], one["subtask"], source["held_by"]
            known = lowest.setdefault((one["vertex"], source["from"]), found)
            if _order(found[0]) < _order(known[0]):
                lowest[one["vertex"], source["from"]] = found
    rows = [["operator", "input", "watermark", "in subtask", "held back by"]]
    rows += [[*names, found[0], str(found[1]), f"subtask {found[2]}"] for names, found in lowest.items()]
    return [table(rows)] if lowest else []


def _order(watermark: str) -> tuple[int, str]:
    """Key that sorts watermarks, given as texts, by time: they have the form of ISO 8601, except for the beginning and the
    end."""
    return {"-inf": 0, "end": 2}.get(watermark, 1), watermark


def _stall_text(one: dict[str, Any]) -> str:
    where = f"{one['vertex']}, subtask {one['subtask']}"
    return f"{where}: a step has not come back for {one['seconds']:.0f} s (the log of the job's program has its stack)"


def _figure(figure: float) -> str:
    return f"{figure:,.1f}" if isinstance(figure, float) else f"{figure:,}"


def _slices(slices: list[dict[str, Any]], *, replaced: bool) -> list[str | Table]:
    """The place of each slice of the job; where lost workers are replaced alone, also its standbys, its log and its
    failovers."""
    if not slices:
        return []
    rows = [["slice", "host", "executor", "process", "attempt"]]
    if replaced:
        rows[0] += ["standbys", "behind", "log", "entries", "kept", "replaced"]
    for one in slices:
        where = [one["host"] or "nowhere", one["executor"] or "", str(one["pid"] or "")]
        rows.append([str(one["slot"]), *where, str(one["attempt"])])
        if replaced:
            sizes = [size_text(one["log_bytes"]), f"{one['log_entries']:,}", size_text(one["kept_bytes"])]
            rows[-1] += [*_standbys(one["standbys"]), *sizes, str(one["replaced"])]
    lines = [line for one in slices for line in _failovers(one)]
    return [table(rows), *(["\n".join(lines)] if lines else [])]


def _standbys(standbys: list[dict[str, Any]]) -> tuple[str, str]:
    """The places of the standbys that hold a slice, and the number of checkpoints that each is behind."""
    where = [f"{one['place']} on {_place(one)}" for one in standbys]
    return "; ".join(where) or "none", "; ".join(map(_behind, standbys))


def _behind(one: dict[str, Any]) -> str:
    if not one["ready"]:
        return "not ready"
    return f"{one['behind']} ({one['behind_seconds']:.1f} s)" if one["behind"] else "0"


def _place(one: dict[str, Any]) -> str:
    return one["host"] if one["executor"] is None else f"{one['host']}, executor {one['executor']}"


def _failovers(one: dict[str, Any]) -> list[str]:
    """Lines on the last loss of a slice's worker, and on how it was replaced."""
    lines, last = [], one["last_failover"]
    if last is not None:
        parts = f"process {last['process_ms']:,.0f}, survivors {last['survivors_ms']:,.0f}, "
        parts += f"restore {last['restore_ms']:,.0f}, replay {last['replay_ms']:,.0f}"
        when = isoformat(round(last["timestamp"] * 1e6))
        lines.append(f"slice {one['slot']}: lost at {when} and replaced in {last['total_ms']:,.0f} ms ({parts})")
    if one["being_replaced"]:
        lines.append(f"slice {one['slot']}: its worker was lost, and is being replaced")
    if one["not_replaced"]:
        lines.append(f"slice {one['slot']}: all had to start again when it was lost: {one['not_replaced']}")
    return lines


def table(rows: list[list[str]]) -> Table:
    """Columns of text below their names, numbers aligned to the right."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name, *cells in zip(*rows, strict=True):
        number = all(cell[:1].isdigit() for cell in cells)
        made.add_column(name, justify="right" if number else "left", overflow="fold")
    for row in rows[1:]:
        made.add_row(*row)
    return made


def show(*parts: str | Table) -> None:
    """Prints texts and tables, a line apart. On a terminal rich draws them; in a pipe or a file they are plain text, and as
    wide as they are."""
    plain: dict[str, Any] = {"markup": False, "emoji": False, "highlight": False}
    text = io.StringIO()
    if sys.stdout.isatty():
        console = Console(**plain)
    else:
        console = Console(file=text, width=_WIDE, color_system=None, **plain)
    for at, part in enumerate(parts):
        if at:
            console.print()
        console.print(part, soft_wrap=isinstance(part, str))  # the terminal wraps texts: a path stays whole
    typer.echo("".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines()), nl=False)
