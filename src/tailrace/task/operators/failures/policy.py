"""The policy of an operator for records that fail, in one subtask."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from tailrace.api.failure_options import FAIL, Failed, ResultFailed, Retry, aside_of
from tailrace.elements.columns.misfit import Misfit
from tailrace.errors import OWN_FOLDER, TailraceError, UserCodeError, message_of, short_repr
from tailrace.graph.graph import Node
from tailrace.task.contract.failedcall import NOTHING, RESULT, FailedCall
from tailrace.task.contract.usercode import FUSED, ResultMisfit, raised_text, user_error
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.failures.spare import Spare

T = TypeVar("T")
ENOUGH = 1_000
"""Number of records from which on the share of failed ones counts before the end of the input."""
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,}\b")
_LIBRARIES = ("site-packages", "/lib/python", "\\lib\\python", "<frozen")


class FailurePolicy:
    """The policy of one operator in one subtask. Its counts are in the context of the operator."""

    def __init__(self, node: Node, ctx: OperatorContext) -> None:
        self.node = node
        self.ctx = ctx
        self.attempts = node.on_error.attempts if isinstance(node.on_error, Retry) else 1
        self.aside = aside_of(node.on_error)
        self.note_call: Callable[[FailedCall], None] | None = None
        """Notes in the facts of a failed call those that the operator has."""
        self.random_before: Any = None
        """The state of the operator's random numbers before the call under way, where it had any."""
        self.journal_gap = ""
        """A sentence on what cannot be undone, for capsules of failed calls; empty where all is."""
        if self.aside is not None and ctx.side is None:
            ctx.side = {}

    def call(self, function: Callable[[Any], T], record: Any, time: int) -> tuple[T] | None:
        """The result of a function for a record, after as many calls as it takes. None if all have failed, and the record
        has gone aside. Raises `UserCodeError` if it goes nowhere."""
        spare = Spare(record)
        for left in reversed(range(self.attempts)):
            self.begin()
            try:
                return (function(record),)
            except Exception as error:
                record = spare.take()
                if not left or not is_of_record(error):
                    self.fail(error, record, time)
                    return None
        return None

    def begin(self) -> None:
        """Begins a call. Where a failure would fail the job, it notes what a capsule of the call needs."""
        if self.aside is None:
            ctx = self.ctx
            ctx.answers = []
            self.random_before = ctx.random_state()

    def fail(
        self,
        error: Exception,
        record: Any,
        time: int,
        key: Any = None,
        timer: float | None = None,
        where: str | None = None,
    ) -> None:
        """Sends a record aside for which the last call has failed. Arguments are those of `failure`. Raises
        `UserCodeError` as that does."""
        self.send_aside(self.failure(error, record, time, key, timer, where), time)

    def failure(
        self,
        error: Exception,
        record: Any,
        time: int,
        key: Any = None,
        timer: float | None = None,
        where: str | None = None,
    ) -> Failed:
        """The record for the side output, for one whose last call has failed. `timer`: the time of a timer that takes the
        place of the record. `where`: the user's line, if it is not that of the error. Raises `UserCodeError` if the policy
        has no side output, and for an error that is none of one record."""
        if self.aside is None or not is_of_record(error):
            raise (
                error if isinstance(error, UserCodeError) else self._user_error(error, record, time, key, timer)
            ) from error
        where = (user_line(error.__cause__ or error) if where is None else where) or self.node.written
        return Failed(record, _ADDRESS.sub("0x…", _text_of(error)), where, self.node.name, key, timer)

    def send_aside(self, failed: Failed, time: int) -> None:
        """Counts a failed record, and sends it to the side output."""
        ctx = self.ctx
        ctx.failed += 1
        ctx.metrics.inc("failed_records")
        ctx.last_failure = failed.error
        assert ctx.side is not None and self.aside is not None
        values, times = ctx.side.setdefault(self.aside.tag, ([], []))
        values.append(failed)
        times.append(time)

    def _user_error(self, error: Exception, record: Any, time: int, key: Any, timer: float | None) -> UserCodeError:
        node, calls = self.node, f" in each of {self.attempts} calls" if self.attempts > 1 else ""
        what = f"{raised_text(error)}{calls}"
        if timer is not None:
            what, record = f"on_timer for key {short_repr(key)} raised {what}", NOTHING
        made = user_error(error, node.name, self.ctx.subtask, record, what=what, written=node.written)
        if self.note_call is not None:
            self.note_call(made.call)
            made.call.time = time
        return made

    def count(self, records: int) -> None:
        """Counts the records of a batch. Raises `UserCodeError` if too many have failed by then."""
        self.ctx.called += records
        if self.ctx.called >= ENOUGH:
            self.check_share()

    def check_share(self) -> None:
        """Raises `UserCodeError` if the share of failed records is above the limit. The job does not start again: the next
        attempt would read the same records."""
        ctx = self.ctx
        if self.aside is None or self.aside.at_most is None or ctx.failed <= self.aside.at_most * ctx.called:
            return
        raise UserCodeError(
            f"{ctx.failed:,} of {ctx.called:,} records failed, and on_error=tr.Aside({self.aside.tag!r}, "
            f"at_most={self.aside.at_most}) allows a share of {self.aside.at_most:.3%}; the last error was "
            f"{ctx.last_failure}; mend the function or the records, or allow a larger share",
            operator=self.node.name,
            subtask=ctx.subtask,
            permanent=True,
            written=self.node.written,
        )


def policy_of(node: Node, ctx: OperatorContext) -> FailurePolicy | None:
    """The policy of an operator; None if its first failed record fails the job."""
    return None if node.on_error == FAIL else FailurePolicy(node, ctx)


def is_of_record(error: Exception) -> bool:
    """True if an error may be due to the record at hand. What Tailrace refuses (the use of state without a key), a lack of
    memory, and the result of a window have other reasons."""
    if isinstance(error, UserCodeError):
        cause, of_result = error.__cause__, isinstance(error.call, FailedCall) and error.call.what == RESULT
        return not (error.permanent or of_result) and (not isinstance(cause, Exception) or is_of_record(cause))
    return isinstance(error, Misfit) or not isinstance(error, TailraceError | MemoryError | ResultFailed)


def _text_of(error: Exception) -> str:
    if isinstance(error, ResultMisfit):
        return message_of(error)
    return str(error.args[0]) if isinstance(error, UserCodeError) else raised_text(error)


def user_line(error: BaseException) -> str:
    """The line of the user's code that raised an error: its file, number and function; empty if no frame is the user's.

    Lines inside of `ctx.call` do not count. Behind a loss the answer of the call comes from a log, without such lines, and
    the text must be equal then. So the file comes without its folder, which differs between executors.
    """
    found: TracebackType | None = None
    at = error.__traceback__
    while at is not None:
        file = at.tb_frame.f_code.co_filename
        if file.startswith(OWN_FOLDER) or file == FUSED:
            if found is not None:
                break
        elif found is None or not any(one in file for one in _LIBRARIES):
            found = at
        at = at.tb_next
    if found is None:
        return ""
    code = found.tb_frame.f_code
    file = re.split(r"[/\\]", code.co_filename)[-1]
    return f"{file}:{found.tb_lineno}, in {code.co_name}"
