"""Checks of asynchronous functions, and of the options of the verbs that call them."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from tailrace.api.checks.arguments import check_span, title_of
from tailrace.api.failure_options import Aside, Retry
from tailrace.api.functions import AsyncFunction, Function, Span
from tailrace.api.nodes import described_scope
from tailrace.elements.durations import span_seconds
from tailrace.errors import GraphError
from tailrace.graph.operators import MapAsync, Order

AnyStream = Any
"""A stream of `api.streams`, the module that imports this one."""
Calls = tuple[Any, Span | None, Any, Any, Any]
"""The options capacity, timeout, ordered, retry and batch."""
_ORDERS: dict[Any, Order] = {True: "input", False: "any", "key": "key"}


def map_async(stream: AnyStream, fn: Any, calls: Calls, options: dict[str, Any]) -> AnyStream:
    """The stream of the results of an asynchronous function; see `DataStream.map_async`."""
    verb = title_of("map_async", options)
    operator = async_map(stream, fn, calls, verb)
    return stream._add(operator, "map_async", policy_given(calls[3], options, verb))


def async_map(stream: AnyStream, fn: Any, calls: Calls, verb: str) -> MapAsync:
    """The operator of asynchronous calls on a stream, with its options checked. Raises `GraphError`."""
    capacity, timeout, ordered, retry, batch = calls
    check_async(fn, verb)
    if stream.scope.level:
        raise GraphError(
            f"{verb}: asynchronous calls cannot be made {described_scope(stream)}: a loop ends when nothing is left in its "
            f"channels, and a call without an answer is in none; call the service in front of the loop, or behind it"
        )
    key = getattr(stream, "key", None)
    if isinstance(ordered, int) and not isinstance(ordered, bool):
        ordered = None
    if not isinstance(ordered, bool | str) or ordered not in _ORDERS:
        raise GraphError(f"{verb}: ordered must be True, False or 'key', not {ordered!r}")
    if ordered == "key" and key is None:
        raise GraphError(f"{verb}: ordered='key' keeps the records of a key in order; call key_by before")
    if retry is not None and not isinstance(retry, Retry):
        raise GraphError(f"{verb}: retry must be a tr.Retry or None, not {retry!r}")
    limit = None if timeout is None else check_span(timeout, verb)
    if limit == 0:
        raise GraphError(f"{verb}: timeout must be positive, or None for calls without a limit")
    attempts, wait = (1, 0.0) if retry is None else (retry.attempts, span_seconds(retry.wait))
    _check_number(capacity, "capacity", "records under way in a subtask", verb)
    if batch is not None:
        _check_number(batch, "batch", "records of one call", verb)
    return MapAsync(fn, key, capacity, limit, _ORDERS[ordered], attempts, round(wait * 1_000_000), batch)


def policy_given(retry: Retry | None, options: dict[str, Any], verb: str) -> dict[str, Any]:
    """The options of the verb, in which `Retry.then` is the policy unless one is given. Raises `GraphError` for a policy
    that makes calls again: `retry` does."""
    given = options.get("on_error")
    if isinstance(given, Retry):
        raise GraphError(f"{verb}: calls are made again by retry=tr.Retry(...); on_error takes 'fail' or a tr.Aside")
    if given is None and isinstance(retry, Retry) and isinstance(retry.then, Aside):
        return options | {"on_error": retry.then}
    return options


def _check_number(value: Any, name: str, what: str, verb: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise GraphError(f"{verb}: {name} is the largest number of {what}, at least 1, not {value!r}")


def check_async(fn: Any, verb: str) -> None:
    """Raises `GraphError` unless `fn` is an `async def` of one argument, or a `tr.AsyncFunction`."""
    if inspect.isclass(fn) and issubclass(fn, Function):
        raise GraphError(f"{verb}: pass an object, not the class: {fn.__name__}()")
    if isinstance(fn, Function) and not isinstance(fn, AsyncFunction):
        raise GraphError(f"{verb}: a {type(fn).__name__} is not a tr.AsyncFunction; use the verb that takes it")
    if isinstance(fn, AsyncFunction) and type(fn).call is AsyncFunction.call:
        raise GraphError(f"{verb}: {type(fn).__name__} has no method call; a tr.AsyncFunction must define it")
    if isinstance(fn, AsyncFunction) and type(fn).checkpoint_complete is not AsyncFunction.checkpoint_complete:
        raise GraphError(
            f"{verb}: {type(fn).__name__} defines checkpoint_complete, and calls of a tr.AsyncFunction are made beside the "
            f"checkpoints; define it in a process function behind map_async"
        )
    work = fn.call if isinstance(fn, AsyncFunction) else fn
    name = f"{type(fn).__name__}.call" if isinstance(fn, AsyncFunction) else getattr(fn, "__name__", type(fn).__name__)
    inner = work
    while isinstance(inner, functools.partial):
        inner = inner.func
    if callable(inner) and not inspect.isroutine(inner):
        inner = type(inner).__call__
    if not inspect.iscoroutinefunction(inner):
        waits = (
            f"For one that waits, and may run in several threads: "
            f"`async def f(x): return await asyncio.to_thread({name}, x)`. "
        )
        raise GraphError(
            f"{verb}: {name} is no async function; write it as `async def`. {waits if callable(work) else ''}"
            f"For one that answers at once use map(f)"
        )
    try:
        inspect.signature(work).bind(None)
    except TypeError:
        raise GraphError(
            f"{verb}: {name}{inspect.signature(work)} is called with 1 argument(s), which it does not accept; change its "
            f"parameters"
        ) from None
