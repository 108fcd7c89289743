"""The application of a page: snapshots of jobs as JSON and as events, orders to jobs, metrics, and the page's files.

All addresses are relative to where the page is: a proxy may put any prefix before them. A snapshot is made when it is
requested, at most once a second for each job, however many look.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from anyio import to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from tailrace.passwords import hide_passwords
from tailrace.runtime.driver.control import is_called
from tailrace.ui.guard import HEADERS, Guard
from tailrace.ui.jobs import SECONDS, Jobs, NotAnswered, WatchedJob
from tailrace.ui.metrics import CONTENT_TYPE, exposition
from tailrace.ui.openapi import openapi

T = TypeVar("T")
STATIC = Path(__file__).parent / "static"
EVERY = 1.0
"""Seconds between two snapshots of a job."""
LOOKS_EVERY = 5.0
"""Seconds between two close looks at the workers of a job."""
QUIET = 15.0
"""Seconds between two signs of life to those who look at a job that has ended."""
ORDERS: dict[str, tuple[dict[str, Any], float]] = {
    "checkpoint": ({"verb": "checkpoint"}, 600.0),
    "savepoint": ({"verb": "savepoint"}, 3600.0),
    "rescale": ({"verb": "rescale"}, 600.0),
    "stop": ({"verb": "stop"}, 3600.0),
    "drain": ({"verb": "stop", "drain": True}, 3600.0),
    "cancel": ({"verb": "cancel"}, 60.0),
}
"""Order -> the request to the job, and the seconds within which it is carried out."""
FINAL = ("FINISHED", "FAILED", "CANCELLED")
_FRESH = {"Cache-Control": "no-store"}


def app_of(jobs: Jobs, guard: Guard) -> Starlette:
    """The application for these jobs."""
    page = _Page(jobs)
    routes = [
        Route("/", page.index),
        Route("/api/openapi.json", page.description),
        Route("/api/jobs", page.listing),
        Route("/api/jobs/{job}", page.snapshot),
        Route("/api/jobs/{job}/events", page.events),
        Route("/api/jobs/{job}/keys", page.keys),
        Route("/api/jobs/{job}/stacks", page.stacks),
        Route("/api/jobs/{job}/logs", page.logs),
        Route("/api/jobs/{job}/{order}", page.order, methods=["POST"]),
        Route("/metrics", page.metrics),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    guarding = Middleware(_Guarding, guard=guard)
    return Starlette(routes=routes, middleware=[guarding], exception_handlers={HTTPException: _error})


async def _error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": hide_passwords(str(error.detail))}, error.status_code)


class _Guarding:
    """The guard before all routes."""

    def __init__(self, app: ASGIApp, guard: Guard) -> None:
        self._app, self._guard = app, guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self._guard.refusal(scope["method"], headers)

        async def send_on(message: Any) -> None:
            if message["type"] == "http.response.start":
                added = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message["headers"], *added]
            await send(message)

        answer: ASGIApp = self._app if refusal is None else JSONResponse({"error": refusal}, 403)
        await answer(scope, receive, send_on)


def _parallelism(request: Request) -> int:
    given = request.query_params.get("parallelism", "")
    try:
        return int(given)
    except ValueError:
        raise HTTPException(400, f"parallelism must be a whole number, not {given!r}") from None


class _Shots:
    """The newest answer of a job to a request, such as its snapshot, for all who look at it, as JSON."""

    def __init__(self, request: dict[str, Any], every: float = EVERY) -> None:
        self._request, self._every = request, every
        self._lock = asyncio.Lock()
        self._at = -every
        self._text = b""
        self.status = ""
        """The status of the job at the snapshot."""

    async def newest(self, job: WatchedJob, status: str = "") -> bytes:
        """The answer of the last second, or a new one; also a new one where the job is known to have another status."""
        async with self._lock:
            if time.monotonic() - self._at >= self._every * 0.9 or status not in ("", self.status):
                made = await _call(partial(job.request, self._request, SECONDS + self._every))
                if "error" in made:
                    raise HTTPException(503, f"the job has ended, or runs with another version: {made['error']}")
                self._text, self._at = msgspec.json.encode(made), time.monotonic()  # null for what is no finite number
                self.status = made.get("job", {}).get("status", "")
            return self._text


class _Page:
    """The routes of a page."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._shots: dict[tuple[str, str], _Shots] = {}

    async def index(self, request: Request) -> Response:
        page = STATIC / "index.html"
        if not await to_thread.run_sync(page.is_file):
            raise HTTPException(404, "this install has no page; api/openapi.json describes what it answers")
        return FileResponse(page)

    async def description(self, request: Request) -> Response:
        return JSONResponse(openapi())

    async def listing(self, request: Request) -> Response:
        names = ("id", "name", "status", "since", "restarts", "pid")  # a job of another version may lack some
        found = [
            {name: who.get(name) for name in names} | {"link": f"#job={who['id']}"} for _, who in await self._all()
        ]
        return JSONResponse(found, headers=_FRESH)

    async def snapshot(self, request: Request) -> Response:
        job, who = await self._job(request)
        subtasks = request.query_params.get("subtasks", "0") != "0"
        shots = self._shots_of(who, {"verb": "snapshot", "subtasks": subtasks})
        return Response(await shots.newest(job, who["status"]), media_type="application/json", headers=_FRESH)

    async def keys(self, request: Request) -> Response:
        return await self._look(request, {"verb": "keys"})

    async def stacks(self, request: Request) -> Response:
        return await self._look(request, {"verb": "stacks"})

    async def logs(self, request: Request) -> Response:
        return await self._look(request, {"verb": "logs"}, EVERY)

    async def _look(self, request: Request, wish: dict[str, Any], every: float = LOOKS_EVERY) -> Response:
        """The answer to a request beside that for a snapshot, each few seconds at most, however many look."""
        job, who = await self._job(request)
        answer = await self._shots_of(who, wish, every).newest(job)
        return Response(answer, media_type="application/json", headers=_FRESH)

    async def events(self, request: Request) -> Response:
        job, who = await self._job(request)
        shots = self._shots_of(who, {"verb": "snapshot", "subtasks": False})
        await shots.newest(job, who["status"])
        headers = {**_FRESH, "X-Accel-Buffering": "no"}  # else nginx holds events back
        return StreamingResponse(_events(job, shots), media_type="text/event-stream", headers=headers)

    async def order(self, request: Request) -> Response:
        chosen = ORDERS.get(request.path_params["order"])
        if chosen is None:
            raise HTTPException(404, f"there is no order {request.path_params['order']!r}")
        job, _ = await self._job(request)
        wish, seconds = chosen
        if wish["verb"] == "rescale":
            wish = {**wish, "size": _parallelism(request)}
        answer = await _call(partial(job.request, wish, seconds))
        return JSONResponse(answer, 409 if "error" in answer else 200, headers=_FRESH)

    async def metrics(self, request: Request) -> Response:
        text = await to_thread.run_sync(exposition, self._jobs)
        return Response(text, media_type=CONTENT_TYPE, headers=_FRESH)

    async def _all(self) -> list[tuple[WatchedJob, dict[str, Any]]]:
        """The jobs that answer, each with its report on itself. One that has not begun, or is gone, hides no other."""
        found = []
        for job in await to_thread.run_sync(self._jobs):
            with suppress(NotAnswered):
                found.append((job, await to_thread.run_sync(job.who)))
        return found

    async def _job(self, request: Request) -> tuple[WatchedJob, dict[str, Any]]:
        """The job of a request, and its report on itself."""
        chosen = request.path_params["job"]
        found = await self._all()
        ids = {who["id"] for _, who in found}
        self._shots = {place: shots for place, shots in self._shots.items() if place[0] in ids}
        called = [one for one in found if one[1]["id"] == chosen or (chosen not in ids and is_called(one[1], chosen))]
        if len(called) > 1:
            raise HTTPException(404, f"several jobs are called {chosen!r} here; give the id of one (GET /api/jobs)")
        if not called:
            raise HTTPException(404, f"there is no job {chosen!r} here; it may have ended")
        return called[0]

    def _shots_of(self, who: dict[str, Any], wish: dict[str, Any], every: float = EVERY) -> _Shots:
        return self._shots.setdefault((who["id"], str(wish)), _Shots(wish, every))


async def _call(function: Callable[[], T]) -> T:
    """The result of a function that waits for a job."""
    try:
        return await to_thread.run_sync(function)
    except NotAnswered as error:
        raise HTTPException(503, str(error)) from None


async def _events(job: WatchedJob, shots: _Shots) -> AsyncIterator[bytes]:
    """A snapshot each second while the job runs. Behind its end the connection stays: a browser would open it anew."""
    while shots.status not in FINAL:
        try:
            text = await shots.newest(job)
        except HTTPException as error:
            yield f"event: gone\ndata: {json.dumps({'error': error.detail})}\n\n".encode()
            break
        yield b"data: " + text + b"\n\n"
        await asyncio.sleep(EVERY)
    else:
        yield b"data: " + await shots.newest(job) + b"\n\n"
    while True:
        await asyncio.sleep(QUIET)
        yield b": quiet\n\n"
