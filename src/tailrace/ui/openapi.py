"""The description of a page's requests, as OpenAPI. Shapes come from the classes of a snapshot, and descriptions from their
docstrings."""

from __future__ import annotations

import ast
import functools
import inspect
from typing import Any

import msgspec

from tailrace import __version__
from tailrace.coordinator.view import job_snapshot

_JOB = {
    "name": "job",
    "in": "path",
    "required": True,
    "schema": {"type": "string"},
    "description": "The id of a job, the beginning of its id, or its name.",
}
_SUBTASKS = {
    "name": "subtasks",
    "in": "query",
    "schema": {"type": "integer", "enum": [0, 1]},
    "description": "1: with the figures of each subtask.",
}
_TOKEN = {
    "name": "X-Tailrace-Token",
    "in": "header",
    "required": True,
    "schema": {"type": "string"},
    "description": "The token behind `#token=` of the page's link.",
}
_ORDERS = {
    "checkpoint": "Takes a checkpoint now, and answers when it is complete.",
    "savepoint": "Takes a savepoint in the usual place, and answers when it is complete.",
    "rescale": "Gives the job another size, and answers when it runs in that size.",
    "stop": "Stops the job with a last checkpoint, and answers when it has ended.",
    "drain": "Ends the sources of the job, and answers when it has come to its end.",
    "cancel": "Ends the job at once, and answers when it has ended.",
}
_SIZE = {
    "name": "parallelism",
    "in": "query",
    "required": True,
    "schema": {"type": "integer", "minimum": 1},
    "description": "The parallelism that operators without one of their own get.",
}
_REFUSALS = {
    "400": "A parameter is missing or wrong.",
    "403": "The token, the host or the origin is wrong, or the page is read-only.",
    "404": "There is no such job.",
    "409": "The job cannot do it; `error` has the reason.",
    "503": "The job has ended, or does not answer.",
}


class ListedJob(msgspec.Struct, frozen=True):
    """A job in the list of jobs."""

    id: str
    name: str
    status: str
    since: float
    """The time since which it has this status."""
    restarts: int
    pid: int
    """The process id of its program."""
    link: str
    """The address of its page, relative to that of the list."""


class OrderResult(msgspec.Struct, frozen=True):
    """The result of an order: the checkpoint or savepoint that was made, the number of workers of a job that has another
    size, the status of a job that has ended, or an error."""

    id: int | None = None
    path: str | None = None
    bytes: int | None = None
    duration: float | None = None
    workers: int | None = None
    status: str | None = None
    error: str | None = None


class KeyLook(msgspec.Struct, frozen=True):
    """The keys on which the workers' time goes. The workers look for two seconds."""

    keys: dict[str, list[job_snapshot.HeavyKey]]
    """The keys of each operator, by its uid, the first one with the most time."""


class ThreadLook(msgspec.Struct, frozen=True):
    """The position of a thread."""

    thread: str
    operator: str | None
    stack: str


class WorkerLook(msgspec.Struct, frozen=True):
    """The stacks of the threads of a worker, or a standby."""

    worker: int
    standby: bool
    host: str
    pid: int
    threads: list[ThreadLook]
    problem: str
    """The reason why there are none; empty where there are."""


class StackLook(msgspec.Struct, frozen=True):
    """The stacks of all workers."""

    workers: list[WorkerLook]


class LoggedLine(msgspec.Struct, frozen=True):
    """A line of the log of a job, or one that its functions have printed."""

    at: float
    """The time at which it was logged, or at which it came."""
    level: str
    """The level as `logging` names it; "PRINT" for a printed line."""
    logger: str
    text: str
    attempt: int | None
    """The number of restarts until then."""
    slot: int | None
    """The number of the worker."""
    uid: str | None
    """The uid of the operator."""


class LogLook(msgspec.Struct, frozen=True):
    """The last lines of the log of a job, the oldest first."""

    lines: list[LoggedLine]


_AT = "#/components/schemas/"


@functools.cache
def openapi() -> dict[str, Any]:
    """The description of all requests."""
    roots = (job_snapshot.JobSnapshot, ListedJob, OrderResult, KeyLook, StackLook, LogLook)
    _, components = msgspec.json.schema_components(roots, ref_template="#/components/schemas/{name}")
    for one in components.values():
        one["description"] = inspect.cleandoc(one["description"])  # as compilers of Python 3.13 and newer do
    for name, described in {**_descriptions(job_snapshot), **_own_descriptions()}.items():
        properties = components.get(name, {}).get("properties", {})
        for field, text in described.items():
            if field in properties:
                properties[field] = _with_text(properties[field], text)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Jobs of Tailrace", "version": __version__},
        "paths": _paths(),
        "components": {"schemas": components},
    }


def _paths() -> dict[str, Any]:
    held = _answer("#/components/schemas/JobSnapshot")
    listed = {"type": "array", "items": {"$ref": "#/components/schemas/ListedJob"}}
    events = {"text/event-stream": {"schema": {"type": "string"}}}
    paths = {
        "/api/jobs": _get("The jobs of this page.", {"application/json": {"schema": listed}}),
        "/api/jobs/{job}": _get("A snapshot of a job.", held, _JOB, _SUBTASKS),
        "/api/jobs/{job}/events": _get("A snapshot of a job each second, as server-sent events.", events, _JOB),
        "/api/jobs/{job}/keys": _get("The keys on which the time of operators goes.", _answer(f"{_AT}KeyLook"), _JOB),
        "/api/jobs/{job}/stacks": _get("The stacks of all workers of a job.", _answer(f"{_AT}StackLook"), _JOB),
        "/api/jobs/{job}/logs": _get("The last lines of the log of a job.", _answer(f"{_AT}LogLook"), _JOB),
        "/metrics": _get(
            "Metrics of all jobs of this page for Prometheus.", {"text/plain": {"schema": {"type": "string"}}}
        ),
    }
    for order, summary in _ORDERS.items():
        result = {"description": "It is done.", "content": _answer("#/components/schemas/OrderResult")}
        refusals = {code: {"description": text} for code, text in _REFUSALS.items()}
        taken = [_JOB, _TOKEN, _SIZE] if order == "rescale" else [_JOB, _TOKEN]
        paths[f"/api/jobs/{{job}}/{order}"] = {
            "post": {"summary": summary, "parameters": taken, "responses": {"200": result, **refusals}}
        }
    return paths


def _get(summary: str, content: dict[str, Any], *parameters: dict[str, Any]) -> dict[str, Any]:
    responses = {"200": {"description": summary, "content": content}}
    return {"get": {"summary": summary, "parameters": list(parameters), "responses": responses}}


def _answer(ref: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": ref}}}


def _with_text(schema: dict[str, Any], text: str) -> dict[str, Any]:
    return {**schema, "description": " ".join(text.split())}


def _own_descriptions() -> dict[str, dict[str, str]]:
    return _descriptions(inspect.getmodule(openapi.__wrapped__))


def _descriptions(module: Any) -> dict[str, dict[str, str]]:
    """Class -> field -> its docstring, in a module. Fields that have another name in JSON keep none."""
    found: dict[str, dict[str, str]] = {}
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.ClassDef):
            texts = found[node.name] = {}
            for field, text in zip(node.body, node.body[1:], strict=False):
                if (
                    isinstance(field, ast.AnnAssign)
                    and isinstance(text, ast.Expr)
                    and isinstance(text.value, ast.Constant)
                ):
                    texts[ast.unparse(field.target)] = str(text.value.value)
    return found
