"""Calls of a service over HTTP that answers after 20 ms: `map_async` on one worker beside the same client in plain asyncio.
The service runs in a process of its own and measures both: the requests between the first and the last one."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.request import urlopen

import aiohttp
from aiohttp import web

import tailrace as tr

SYSTEMS = ("tailrace", "asyncio", "sleep")
"""`sleep` is ours with a coroutine that sleeps as long, and no service."""


@dataclass(frozen=True)
class CallsSpec:
    system: str = "tailrace"
    records: int = 40_000
    capacity: int = 500
    """Number of calls under way."""
    answer: float = 0.02
    """Seconds until the service answers."""

    @classmethod
    def of(cls, options: dict[str, str]) -> CallsSpec:
        kinds = {"system": str, "records": int, "capacity": int, "answer": float}
        return cls(**{name: kind(options[name]) for name, kind in kinds.items() if name in options})  # type: ignore[arg-type]


class Client(tr.AsyncFunction):
    """The client of both systems."""

    def __init__(self, url: str, capacity: int) -> None:
        self.url, self.capacity = url, capacity

    async def open(self, ctx: Any) -> None:
        self.session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=self.capacity))

    async def call(self, record: int) -> int:
        async with self.session.get(self.url, params={"n": record}) as answer:
            return int(await answer.text())

    async def close(self) -> None:
        await self.session.close()


class Sleep(tr.AsyncFunction):
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    async def call(self, record: int) -> int:
        await asyncio.sleep(self.seconds)
        return record + 1


class Span(tr.MapFunction):
    """A map that reports when the first and the newest record passed it, once in a thousand."""

    def open(self, ctx: tr.Context) -> None:
        self.first, self.seen = 0.0, 0

    def map(self, record: int) -> tuple[float, int]:
        self.first, self.seen = self.first or time.monotonic(), self.seen + 1
        return (time.monotonic() - self.first, self.seen)


def run(spec: CallsSpec) -> dict[str, Any]:
    """Calls per second. Raises `SystemExit` if an answer is missing or wrong."""
    if spec.system == "sleep":
        return _slept(spec)
    with service(spec.answer) as url:
        total = asyncio.run(_plain(spec, url)) if spec.system == "asyncio" else _ours(spec, url)
        figures = json.loads(urlopen(url + "/figures").read())
    if (total, figures["requests"]) != (sum(range(1, spec.records + 1)), spec.records):
        raise SystemExit(f"{spec.system}: {figures['requests']} requests, and answers of {total}")
    return {"calls_per_second": int(figures["requests"] / figures["seconds"]), "verified": True}


async def _plain(spec: CallsSpec, url: str) -> int:
    client, numbers, total = Client(url, spec.capacity), iter(range(spec.records)), 0
    await client.open(None)

    async def caller() -> int:
        return sum([await client.call(number) for number in numbers])

    total = sum(await asyncio.gather(*(caller() for _ in range(spec.capacity))))
    await client.close()
    return total


def _ours(spec: CallsSpec, url: str) -> int:
    env = tr.Environment(parallelism=1, progress=False)
    numbers = env.from_source(tr.sources.Sequence(0, spec.records))
    answers = numbers.map_async(Client(url, spec.capacity), capacity=spec.capacity, ordered=False)
    sink = answers.sink_to(tr.sinks.Collect())
    env.execute("calls").await_termination()
    return sum(sink.result())


def _slept(spec: CallsSpec) -> dict[str, Any]:
    env = tr.Environment(parallelism=1, progress=False)
    numbers = env.from_source(tr.sources.Sequence(0, spec.records))
    answers = numbers.map_async(Sleep(spec.answer), capacity=spec.capacity, ordered=False)
    sink = answers.map(Span()).sink_to(tr.sinks.Collect())
    env.execute("calls").await_termination()
    seconds, seen = max(sink.result())
    if seen != spec.records:
        raise SystemExit(f"{seen} of {spec.records} answers")
    return {"calls_per_second": int(seen / seconds), "verified": True}


@contextmanager
def service(answer: float) -> Iterator[str]:
    """The URL of a service in a process of its own."""
    process = subprocess.Popen([sys.executable, "-m", __name__, str(answer)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()


async def serve(answer: float) -> None:
    times: list[float] = []

    async def call(request: web.Request) -> web.Response:
        times.append(time.monotonic())
        await asyncio.sleep(answer)
        return web.Response(text=str(int(request.query["n"]) + 1))

    async def figures(request: web.Request) -> web.Response:
        return web.json_response({"requests": len(times), "seconds": max(times) - min(times)})

    app = web.Application()
    app.router.add_get("/", call)
    app.router.add_get("/figures", figures)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=4096)
    await site.start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(float(sys.argv[1])))
