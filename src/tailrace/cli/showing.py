"""A running job as text for a terminal: what holds it, its progress, operators, subtasks and slices."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from typing import Any

import typer
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table

from tailrace.coordinator.view.job_snapshot import (
    CheckpointFigures,
    CheckpointsFigures,
    InputFigures,
    JobSnapshot,
    LoopFigures,
    SubtaskFigures,
)
from tailrace.coordinator.view.summary import UNKNOWN, figure_text, share_text, span_text, summary_of
from tailrace.elements.byte_texts import size_text
from tailrace.elements.timestamps import isoformat
from tailrace.passwords import hide_passwords

_GAP = 2
"""Spaces between two columns."""
_READABLE = 12
"""Width at which texts can still be read over several lines."""
_WIDE = 1 << 16
"""Width of a table in a pipe, in columns: no line is broken there."""


def echo(text: str, err: bool = False) -> None:
    """Prints a text, without the passwords of URLs in it."""
    typer.echo(hide_passwords(text), err=err)


def job_parts(shot: JobSnapshot) -> list[str | FittingTable]:
    """A snapshot of a job, as texts and tables."""
    names = {one.uid: one.name for one in shot.graph.operators}
    lines = [f"{shot.job.name} ({shot.job.id[:8]}), process {shot.job.process}", summary_of(shot)]
    lines += [one.text for one in shot.findings] or [shot.sentence]
    lines += last_failure(shot)
    lines += [] if shot.checkpoints is None else _checkpoints(shot.checkpoints)
    refused = shot.job.refused_connections
    if refused:
        lines.append(f"refused connections: {', '.join(f'{many:,} ({why})' for why, many in refused.items())}")
    return [
        hide_passwords("\n".join(lines)),
        _operators(shot, names),
        *_subtasks(shot.subtasks or (), names),
        *_event_times(shot.inputs, names),
        *_loops(shot.loops),
        *_slices(shot.slices, replaced=shot.standbys is not None),
    ]


def last_failure(shot: JobSnapshot) -> list[str]:
    """A line on the last failure: when it was, what followed, and the line of the user's program; none where there was none,
    and where the sentence on the job has it."""
    if not shot.failures or shot.failures[-1].text in shot.sentence:
        return []
    last = shot.failures[-1]
    when = f"{isoformat(round(last.at * 1e6))}, {span_text(max(0.0, shot.at - last.at))} ago"
    then = "" if last.restart is None else f", before restart {last.restart}"
    then = then if last.worker is None else f"; worker {last.worker} was replaced alone"
    return [f"last failure at {when}{then}: {last.text}{'' if last.line is None else f' ({last.line})'}"]


def _operators(shot: JobSnapshot, names: dict[str, str]) -> FittingTable:
    """A line for each operator, its subtasks together. It names the subtask with most records, where there are several."""
    rows = [["operator", "tasks", "busy", "waits", "held", "in", "in/s", "out", "out/s", "waiting", "state entries"]]
    compared = any(one.skew for one in shot.operators.values())
    rows[0] += ["heaviest"] if compared else []
    chains: set[int] = set()
    for operator in shot.graph.operators:
        one, first = shot.operators[operator.uid], operator.chain not in chains
        chains.add(operator.chain)
        shares = [share_text(share) if first else "" for share in (one.busy, one.waiting, one.backpressured)]
        figures = [*map(figure_text, (one.records_in, one.rate_in, one.records_out, one.rate_out))]
        waiting = "" if not first or one.waiting_bytes is None else size_text(one.waiting_bytes)
        rows.append(
            [operator.name, str(operator.parallelism), *shares, *figures, waiting, figure_text(one.state_entries)]
        )
        if compared:
            rows[-1].append("" if one.skew is None else f"{one.skew.subtask} ({one.skew.share:.0%})")
    return FittingTable(rows, ["out", "in", "tasks", "waiting", "state entries", "held", "waits", "heaviest"])


def _subtasks(subtasks: Sequence[SubtaskFigures], names: dict[str, str]) -> list[FittingTable]:
    """A line for each subtask."""
    if not subtasks:
        return []
    rows = [["operator", "subtask", "in", "out", "busy s", "unread", "unsent", "state entries", "step s", "age s"]]
    rows[0] += ["watermark", "waits for"]
    for one in subtasks:
        figures = [one.records_in, one.records_out, one.busy_seconds, one.queued_bytes, one.unsent_bytes]
        figures += [one.state_entries, one.under_way_seconds, one.age_seconds]
        waits_for = "" if one.under_way_seconds else one.waits_for
        rows.append([names[one.operator], str(one.subtask), *map(figure_text, figures), one.watermark, waits_for])
    return [FittingTable(rows, ["age s", "step s", "unsent", "out", "state entries", "unread", "busy s", "in"])]


def _event_times(inputs: Sequence[InputFigures], names: dict[str, str]) -> list[FittingTable]:
    """Event time on each input of an operator, in the subtask that is farthest behind, and the upstream subtask that holds
    it back there."""
    if all(one.watermark == "-inf" for one in inputs):
        return []
    rows = [["operator", "input", "watermark", "in subtask", "held back by"]]
    for one in inputs:
        held = f"subtask {one.held_by}{'' if one.held_by_split is None else f', split {one.held_by_split}'}"
        rows.append([names[one.operator], names[one.source], one.watermark, str(one.subtask), held])
    return [FittingTable(rows, ["in subtask"])]


def _loops(loops: Sequence[LoopFigures]) -> list[FittingTable]:
    rows = [["loop", "waiting at its head", "gone around", "around/s", "round"]]
    for one in loops:
        figures = [one.feedback_waiting, one.feedback_total, one.feedback_rate, one.round]
        rows.append([one.name, *map(figure_text, figures)])
    return [FittingTable(rows)] if loops else []


def _checkpoints(taken: CheckpointsFigures) -> list[str]:
    """The newest checkpoint with its parts, and those under way."""
    lines = []
    if taken.history:
        last = taken.history[-1]
        lines += [checkpoint_text(last), last.path]
    for one in taken.under_way:
        whose = f", in worker {', '.join(map(str, one.workers))}" if one.workers else ""
        lines.append(f"checkpoint {one.id} under way for {span_text(one.age)}: {one.phase}{whose}")
    return lines


def checkpoint_text(one: CheckpointFigures) -> str:
    """A complete checkpoint: its number, size, and duration with its parts in milliseconds."""
    parts = ", ".join(f"{name} {getattr(one, name) * 1e3:,.0f}" for name in ("trigger", "alignment", "freeze", "write"))
    text = f"checkpoint {one.id}: {size_text(one.bytes)} in {one.duration * 1e3:,.0f} ms ({parts})"
    return text if one.policy == "aligned" else f"{text}, {one.policy}, {size_text(one.inflight_bytes)} in flight"


def _slices(slices: list[dict[str, Any]], *, replaced: bool) -> list[str | FittingTable]:
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
    spare = ["attempt", "entries", "log", "kept", "executor", "behind"]
    return [FittingTable(rows, spare), *(["\n".join(lines)] if lines else [])]


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


class FittingTable:
    """A table of texts below the names of their columns, numbers aligned to the right. On a terminal that is too narrow,
    columns of figures are left out, and a line below names them; where that is not enough, wide cells are broken."""

    def __init__(self, rows: list[list[str]], spare: Sequence[str] = ()) -> None:
        """`spare`: names of columns that may be left out, the first one first."""
        self._rows, self._spare = rows, [name for name in spare if name in rows[0]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns, left_out = [_Column(name, cells) for name, *cells in zip(*self._rows, strict=True)], []
        for name in self._spare:
            if sum(one.least_width + _GAP for one in columns) - _GAP <= options.max_width:
                break
            columns = [one for one in columns if one.name != name]
            left_out.append(name)
        if sum(one.least_width + _GAP for one in columns) - _GAP > options.max_width:
            for one in columns:
                one.break_up()
        made = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
        for one in columns:
            made.add_column(one.name, justify="right" if one.number else "left", overflow="fold", no_wrap=one.whole)
        for row in zip(*(one.cells for one in columns), strict=True):
            made.add_row(*row)
        yield made
        if left_out:
            yield f"(no room for: {', '.join(left_out)})"


class _Column:
    """A column of a table, below its name."""

    def __init__(self, name: str, cells: list[str]) -> None:
        self.name, self.cells = name, cells
        self.number = all(cell[:1].isdigit() or cell == UNKNOWN for cell in cells)
        widest = max(map(cell_len, (name, *cells)))
        self.whole = self.number or widest <= _READABLE
        """True if its cells are never broken."""
        self.least_width = widest if self.whole else _READABLE

    def break_up(self) -> None:
        """Breaks cells that are wider than what can be read over several lines, also numbers and times."""
        self.whole = self.whole and self.least_width <= _READABLE


def show(*parts: str | FittingTable) -> None:
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
