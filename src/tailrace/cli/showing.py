"""A running job as text for a terminal: its progress, operators, subtasks and slices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tailrace.elements.sizes import size_text
from tailrace.elements.timestamps import isoformat
from tailrace.runtime.driver.progressline import told_of


def job_text(shown: dict[str, Any]) -> str:
    """The answer of a job to `show`, as text."""
    lines = [f"{shown['name']} ({shown['id'][:8]}), process {shown['pid']}"]
    progress = shown["progress"]
    if progress is None:
        lines.append(f"{shown['status']}; no worker has reported yet")
    else:
        figures = progress["tailrace"]
        lines += told_of(shown["status"], figures, progress["inputRowsPerSecond"], figures["busyShare"])
        last = (figures["checkpoints"] or {}).get("last")
        lines += [] if last is None else [last["path"]]
        lines += [_stalled(one) for one in figures.get("stalled", ())]
    refused = shown.get("refused_connections")
    if refused:
        lines.append(f"refused connections: {', '.join(f'{many:,} ({why})' for why, many in refused.items())}")
    subtasks = shown.get("subtasks", ())
    parts = [
        _operators(shown["operators"]),
        *_subtasks(subtasks),
        *(_event_times(subtasks) if _timed(progress) else []),
    ]
    parts += _slices(shown["slices"], replaced=shown["standby"] is not None)
    return "\n\n".join(["\n".join(lines), *parts])


def _operators(operators: list[dict[str, Any]]) -> str:
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


def _subtasks(subtasks: Sequence[dict[str, Any]]) -> list[str]:
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


def _timed(progress: dict[str, Any] | None) -> bool:
    return progress is not None and progress["tailrace"]["watermark"] is not None


def _event_times(subtasks: Sequence[dict[str, Any]]) -> list[str]:
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


def _stalled(one: dict[str, Any]) -> str:
    where = f"{one['vertex']}, subtask {one['subtask']}"
    return f"{where}: a step has not come back for {one['seconds']:.0f} s (the log of the job's program has its stack)"


def _figure(figure: float) -> str:
    return f"{figure:,.1f}" if isinstance(figure, float) else f"{figure:,}"


def _slices(slices: list[dict[str, Any]], *, replaced: bool) -> list[str]:
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
    told = [line for one in slices for line in _failovers(one)]
    return [table(rows), *(["\n".join(told)] if told else [])]


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
    told, last = [], one["last_failover"]
    if last is not None:
        parts = f"process {last['process_ms']:,.0f}, survivors {last['survivors_ms']:,.0f}, "
        parts += f"restore {last['restore_ms']:,.0f}, replay {last['replay_ms']:,.0f}"
        when = isoformat(round(last["timestamp"] * 1e6))
        told.append(f"slice {one['slot']}: lost at {when} and replaced in {last['total_ms']:,.0f} ms ({parts})")
    if one["being_replaced"]:
        told.append(f"slice {one['slot']}: its worker was lost, and is being replaced")
    if one["not_replaced"]:
        told.append(f"slice {one['slot']}: all had to start again when it was lost: {one['not_replaced']}")
    return told


def table(rows: list[list[str]]) -> str:
    """Columns of text below their names, numbers aligned to the right."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    number = [all(row[at][:1].isdigit() for row in rows[1:]) for at in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [c.rjust(w) if right else c.ljust(w) for c, w, right in zip(row, widths, number, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
