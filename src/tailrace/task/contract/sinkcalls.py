"""Calls of the methods of sinks that are made beside the steps of a worker: to publish, to forget, to remove."""

from __future__ import annotations

from collections.abc import Callable

from tailrace.api.connectors import Sink, is_permanent
from tailrace.errors import error_text
from tailrace.task.contract.actions import CallSink
from tailrace.task.contract.events import SinkAnswered
from tailrace.task.contract.usercode import user_traceback


def call_sink(action: CallSink) -> SinkAnswered:
    """Makes the call. Returns the event for the worker: whatever user code raises is in it."""
    try:
        getattr(action.sink, action.method)(*action.args)
    except BaseException as error:
        permanent = is_permanent(action.sink, error)
        return SinkAnswered(action.number, error_text(error), user_traceback(error), permanent)
    return SinkAnswered(action.number)


def close_sink(sink: Sink, report: Callable[[str], object]) -> None:
    """Closes a sink that publishes no more. An error changes nothing for the job: `report` gets its text."""
    try:
        sink.close()
    except Exception as error:
        report(f"close() of sink {type(sink).__name__} raised {error_text(error)}")
