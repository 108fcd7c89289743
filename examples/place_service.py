"""A service that gives the place of an address over HTTP, after 20 ms: `GET /place?address=1.2.3.4`."""

import asyncio
import threading
from collections.abc import Callable

from aiohttp import web


async def place(request: web.Request) -> web.Response:
    await asyncio.sleep(0.02)
    address = request.query["address"]
    if address.endswith(".255"):
        raise web.HTTPNotFound
    return web.json_response({"place": f"net {address.split('.')[0]}"})


def serve(started: Callable[[str], None]) -> None:
    """Answers until the program ends; `started` is called with the URL."""

    async def begin() -> None:
        app = web.Application()
        app.router.add_get("/place", place)
        runner = web.AppRunner(app)
        await runner.setup()
        await (site := web.TCPSite(runner, "127.0.0.1", 0)).start()
        started(f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/place")
        await asyncio.Event().wait()

    asyncio.run(begin())


def service() -> str:
    """The URL of a service of our own, in a thread."""
    urls: list[str] = []
    ready = threading.Event()
    threading.Thread(target=serve, args=(lambda url: (urls.append(url), ready.set()),), daemon=True).start()
    ready.wait()
    return urls[0]
