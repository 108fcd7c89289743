"""Sessions of clicks, from one topic of Kafka to another: each session once, whatever is killed meanwhile.

    python examples/sessions_kafka.py localhost:9092 clicks sessions

A click is a JSON object with `user`, `page` and `at` (seconds since 1970). A session ends when its user does nothing for
half an hour. Readers of the sessions have to read with `isolation.level=read_committed`.
"""

import argparse
from typing import Any

import tailrace as tr

GAP = 1800
LATENESS = 60


class Visit(tr.WindowFunction):
    """The row of a session: when it began and when its last click was, its clicks, its pages."""

    def process(self, key: str, window: Any, records: list, ctx: Any) -> Any:
        pages = {click["page"] for click in records}
        yield {
            "user": key,
            "start": window.start,
            "last": window.end - GAP,
            "clicks": len(records),
            "pages": len(pages),
        }


def sessions(clicks: tr.DataStream) -> tr.DataStream:
    """Rows of sessions, from clicks that come out of order by up to a minute in each partition."""
    timed = clicks.assign_timestamps(lambda click: click["at"], out_of_orderness=LATENESS, idle_after=10)
    by_user = timed.key_by(lambda click: click["user"], uid="by_user")
    return by_user.window(tr.Session(GAP)).process(Visit(), uid="sessions")


def dataflow(env: tr.Environment, servers: str, clicks: str, out: str, until: str | None = None) -> None:
    """Adds the dataflow from the topic `clicks` to the topic `out`."""
    read = env.from_source(tr.sources.Kafka(servers, clicks, until=until), uid="clicks")
    sessions(read).sink_to(tr.sinks.Kafka(servers, out, key="user"), uid="out")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Sessions of clicks, from Kafka to Kafka.")
    parser.add_argument("servers", help="host:port,host:port")
    parser.add_argument("clicks", help="topic of clicks")
    parser.add_argument("sessions", help="topic of sessions")
    parser.add_argument("--checkpoint-dir", default="checkpoints")
    parser.add_argument("--once", action="store_true", help="end where the topic ends")
    args = parser.parse_args()

    env = tr.Environment(checkpoint=tr.CheckpointConfig(args.checkpoint_dir, interval=1.0), progress=True)
    dataflow(env, args.servers, args.clicks, args.sessions, until="latest" if args.once else None)
    env.execute("sessions", from_checkpoint="latest-or-new").await_termination()
