"""Visits with the place of their address, from a service that answers over HTTP.

    python examples/enrich.py --visits 20000 --url http://127.0.0.1:8000/place

Without --url the example starts such a service, which answers after 20 ms.
"""

import argparse
from typing import Any

import aiohttp
from place_service import service

import tailrace as tr


class Place(tr.AsyncFunction):
    """(visit, place). A service that does not answer is called again, and a visit without an answer goes aside."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def open(self, ctx: Any) -> None:
        self.session = aiohttp.ClientSession(raise_for_status=True)

    async def call(self, visit: tuple) -> tuple:
        async with self.session.get(self.url, params={"address": visit[1]}) as answer:
            return visit, (await answer.json())["place"]

    async def close(self) -> None:
        await self.session.close()


def enriched(visits: tr.DataStream, url: str) -> tr.DataStream:
    """Pairs (visit, place) of visits (number, address), in their order, and the side output `"unknown"`."""
    again = tr.Retry(3, wait=0.1, then=tr.Aside("unknown"))
    return visits.map_async(Place(url), capacity=500, timeout=5.0, retry=again, uid="places")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Visits with places, over HTTP.")
    parser.add_argument("--visits", type=int, default=20_000)
    parser.add_argument("--url")
    args = parser.parse_args()

    env = tr.Environment(progress=True)
    visits = env.from_collection([(n, f"{n % 200}.0.0.{n % 256}") for n in range(args.visits)])
    found = enriched(visits, args.url or service())
    unknown = found.side_output("unknown").sink_to(tr.sinks.Collect())
    places = found.map(lambda pair: pair[1]).key_by(lambda place: place).count().sink_to(tr.sinks.Collect())
    env.execute("enrich").await_termination()
    print(len(places.result()), "results;", len(unknown.result()), "without a place")
