"""Logs of JSON lines as Parquet in folders by day, for Spark, pandas and everything else that reads tables.

    python examples/archive.py --logs logs --out archive --follow

Lines that cannot be read are written to `bad`, with their file and place. With --follow the logs are read on as they grow.
"""

import argparse
import json
from pathlib import Path

import tailrace as tr

LINE = "at timestamp, level string, message string"
ROW = f"day date, {LINE}"


def archive(env: tr.Environment, logs: str, out: str, follow: bool = False, roll: tr.Roll | None = None) -> None:
    """Adds the dataflow: the lines of `logs` into folders by day in `out`/events, and wrong ones into `out`/bad."""
    source = tr.sources.Json(logs, LINE, partitions=False, follow=follow)
    events = env.from_source(source, on_error=tr.Aside("bad"), uid="logs")
    dated = events.map(lambda event: (event.at.date(), *event), uid="days")
    dated.sink_to(tr.sinks.Parquet(f"{out}/events", ROW, partition_by=["day"], roll=roll), uid="events")
    wrong = events.side_output("bad").map(lambda failed: json.dumps(str(failed.error)))
    wrong.sink_to(tr.sinks.TextFiles(f"{out}/bad"), uid="bad")


def write_sample(folder: Path) -> None:
    """Writes logs of three days, with a line that is none."""
    folder.mkdir(parents=True, exist_ok=True)
    for day in (1, 2, 3):
        lines = [
            json.dumps({"at": f"2024-01-{day:02}T{n % 24:02}:00:00Z", "level": "info", "message": f"message {n}"})
            for n in range(1000)
        ]
        (folder / f"app-{day}.log").write_text("\n".join([*lines, "rubbish"] if day == 2 else lines) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Logs as Parquet in folders by day.")
    parser.add_argument("--logs", help="folder of logs; a sample is written where none is given")
    parser.add_argument("--out", default="archive")
    parser.add_argument("--follow", action="store_true")
    args = parser.parse_args()

    if args.logs is None:
        write_sample(Path(args.out, "logs"))
    env = tr.Environment(progress=True, checkpoint=tr.CheckpointConfig(f"{args.out}/checkpoints", interval=1))
    archive(env, args.logs or f"{args.out}/logs", args.out, args.follow, tr.Roll(bytes=128 << 20, seconds=60))
    env.execute("archive").await_termination()
    print(*sorted(path.name for path in Path(args.out, "events").glob("day=*")), sep="\n")
