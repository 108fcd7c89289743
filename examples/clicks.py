"""Sessions of clicks, from a web log that is rotated: how long does a user stay, on how many pages?

    python examples/clicks.py logs out --checkpoint-dir checkpoints

A line is `seconds user page`. A session ends when its user does nothing for half an hour.
"""

import argparse
from pathlib import Path

import tailrace as tr


def parse(line: str) -> tuple[float, str, str]:
    second, user, page = line.split()
    return float(second), user, page


class Visit(tr.WindowFunction):
    """Lines `user start end clicks pages`, one for each session."""

    def process(self, key, window, records, ctx):
        pages = len({page for _, _, page in records})
        yield f"{key} {window.start:.0f} {window.end:.0f} {len(records)} {pages}"


def visits(lines: tr.DataStream) -> dict[str, tr.DataStream]:
    """The streams that the job writes: sessions, clicks that came too late for theirs, lines that are none."""
    clicks = lines.map(parse, uid="parse", on_error=tr.Aside("bad"))
    timed = clicks.assign_timestamps(lambda click: click[0], out_of_orderness=60, idle_after=10)
    sessions = timed.key_by(lambda click: click[1]).window(tr.Session(1800)).process(Visit(), uid="sessions")
    late = sessions.side_output("late").map(lambda click: " ".join(map(str, click)))
    bad = clicks.side_output("bad").map(lambda failed: failed.record)
    return {"sessions": sessions, "late": late, "bad": bad}


def dataflow(env: tr.Environment, logs: str, out: str, follow: bool = True) -> None:
    lines = env.from_source(tr.sources.TextFiles(logs, follow=follow), uid="lines")
    for name, stream in visits(lines).items():
        stream.sink_to(tr.sinks.TextFiles(str(Path(out, name))), uid=f"write {name}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Sessions of clicks, from a web log.")
    parser.add_argument("logs")
    parser.add_argument("out")
    parser.add_argument("--checkpoint-dir")
    parser.add_argument("--once", action="store_true", help="end where the files end")
    args = parser.parse_args()

    checkpoint = tr.CheckpointConfig(args.checkpoint_dir) if args.checkpoint_dir else None
    env = tr.Environment(checkpoint=checkpoint, progress=True)
    dataflow(env, args.logs, args.out, follow=not args.once)
    env.execute("clicks").await_termination()
