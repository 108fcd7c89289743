"""Interface of every operator at run time.

Operators of one vertex call each other directly, batch by batch: `process` ends in `self.out(batch)`. They never see
channels. Work that could take long comes in bounded portions: `advance` and `fire_processing` take a limit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol

from tailrace.api.failure_options import FAIL, NOTED
from tailrace.api.functions import Function
from tailrace.elements.batches import Batch, Rows
from tailrace.elements.columns.schemas import OneSchema
from tailrace.elements.frame_codec import ChannelName
from tailrace.elements.markers import SpanRound
from tailrace.elements.timestamps import MIN_TIME, NO_TIME
from tailrace.errors import IncompatibleState, UserCodeError
from tailrace.graph.graph import Node
from tailrace.graph.plan import Plan
from tailrace.state.backend import Backend, MetaPart
from tailrace.state.format import ChannelLog, TableInfo
from tailrace.state.ttl_lifetimes import Expiry
from tailrace.state.undo_log import Journal
from tailrace.task.channels.channel_logs import LogFrame, Recording
from tailrace.task.contract.cut_state import CutState
from tailrace.task.contract.failedcall import FailedCall
from tailrace.task.contract.usercode import raised_text, user_error
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.groupchains import GroupChains

if TYPE_CHECKING:
    from tailrace.task.operators.failures.policy import FailurePolicy

Emit = Callable[[Batch], None]


def nowhere(batch: Batch) -> None:
    """Drops a batch that no operator takes."""


@dataclass(eq=False)
class OperatorCutState(CutState):
    """State of an operator at a cut that is not in its own part of the checkpoint."""

    rested: bool = False
    """True if `at_rest` was called, in this attempt or before the checkpoint that it was restored from: `finish` then has
    nothing more to emit."""
    rests: int = 0
    """Number of the newest rest that the operator has done, in this attempt or before the restored checkpoint."""
    finished: bool = False
    """True if `finish` was called, in this attempt or before the checkpoint that it was restored from."""
    taken: int = 0
    """Records that the operator before it in the chain has handed over, in this attempt."""
    given: int = 0
    """Records that it has emitted, to its main and side outputs, each once however many operators receive it."""


def new_journal(node: Node) -> Journal | None:
    """A journal for an operator with a policy for records that fail; None for any other."""
    return None if node.on_error == FAIL else Journal(lenient=node.on_error == NOTED)


class OperatorTask(OperatorCutState):
    """One operator in one subtask."""

    generates_watermarks = False
    """True if the operator makes its own watermarks and ignores those that come in."""

    def __init__(self, node: Node, ctx: OperatorContext) -> None:
        super().__init__()
        self.node = node
        self.ctx = ctx
        self.encoded = 0, 0
        """The number of entries of keyed state that checkpoints have encoded, and their bytes."""
        self.out: Emit = nowhere
        self.side_out: dict[str, Emit] = {}
        self.chains = GroupChains()

    @property
    def entry(self) -> Node:
        """Node that receives the input: the first one if several are fused."""
        return self.node

    def take_plan(self, plan: Plan) -> None:
        """Takes the plan of the dataflow, from which some operators need more than their node. Called when the chain is
        built."""

    def open(self) -> None:
        """Called once, before the first input."""

    def process(self, batch: Batch, port: int) -> None:
        """Takes a batch on an input port."""
        raise NotImplementedError

    def advance(self, time: int, limit: int) -> bool:
        """Advances event time to `time` and fires what is due, at most `limit` times. True when nothing is left."""
        self.ctx.watermark_time = time
        return True

    def done_until(self) -> int | None:
        """Event time up to which all timers have fired, while later ones are due that emit nothing as old as that. None
        if that is unknown: a function may set a timer for a time that has passed."""
        return None

    sees_each_timer = False
    """True if user code sees event time advance to each of its timers in turn, and not at once to the watermark."""

    def own_watermark(self) -> int:
        """Current watermark of an operator that generates watermarks."""
        return MIN_TIME

    def next_event(self) -> int | None:
        """Time at which the next event-time timer is due (int64 microseconds), or None."""
        return None

    def next_processing(self) -> int | None:
        """Time at which the next processing-time timer is due (int64 microseconds), or None."""
        return None

    def fire_processing(self, now: int, limit: int) -> int:
        """Fires at most `limit` processing-time timers that are due at `now`; returns their number."""
        return 0

    def awaits_timers(self) -> bool:
        """True if the operator has processing-time timers that its task awaits before it ends."""
        return not self.generates_watermarks and self.next_processing() is not None

    def at_rest(self) -> None:
        """Called in a loop, instead of `finish`, when all input was processed and nothing is on its way. Records emitted
        now may set the loop to work again; then this is called again."""
        self.rested = True

    def enter_rounds(self) -> None:
        """Prepares the operator for a loop in rounds. Called before anything is restored."""
        self.at_round(0)

    def at_round(self, number: int) -> None:
        """Sets the round of the records that come from here on."""
        for ctx in self.contexts():
            ctx.round = number

    def round_ends(self, number: int, span: SpanRound | None) -> None:
        """Notes that a round ends here. `number` is not that within its span, in rounds by spans of event time."""
        for ctx in self.contexts():
            ctx.round_time = NO_TIME if span is None else span.time

    def end_span(self, limit: int) -> bool:
        """Clears one portion, of about `limit` entries, of the state of a span of event time, which is over. True when that
        was all."""
        return True

    def end_round(self, number: int, limit: int) -> bool:
        """Does one portion, of about `limit` calls, of the work at the end of a round. All records of the round were
        processed here. True when that was all."""
        return True

    def input_ended(self) -> None:
        """Called when all inputs have ended. Pending processing-time timers are awaited from here on, or are dropped
        here."""

    def finish(self) -> None:
        """Emits what is left. The last call before `close` of an operator whose input has ended."""

    def close(self) -> None:
        """Releases everything; called also after a failure. An error that user code raises here is reported, and does not
        count as the cause of the failure."""

    policy: FailurePolicy | None = None
    """The policy for records that fail; None if the first of them fails the job."""
    journal: Journal | None = None
    """The journal of what a batch changes in the operator, if it has a policy and state."""

    # Checkpoints. See `docs/protocols/snapshot.md`.

    backend: Backend | None = None
    """Keyed state and timers, if the operator has any. The task freezes, encodes and restores them."""
    chains: GroupChains
    """Files that hold the state of the backend, by key group; used only if there is a backend."""

    def snapshot(self, checkpoint: int) -> bytes | None:
        """State of the operator that is not keyed, encoded, at the cut; small. None if there is none."""
        return None

    def expiries(self) -> dict[str, Expiry]:
        """Lifetimes of the entries of its tables at the cut, by table."""
        return {}

    def own_tables(self) -> list[TableInfo]:
        """Description of what `snapshot` has just returned, for readers that do not decode it: each part with the classes
        of its values."""
        return []

    one_schema: OneSchema | None = None
    """Schema of the columns that the operator takes or makes, if it holds them to one. Checkpoints hold it
    (`task.operators.columns.schemas`)."""
    one_schema_of: Literal["input", "output"] | None = None
    """Stream that `one_schema` is about. A schema that the dataflow declares before the operator (input), or behind it
    (output), stands for what the operator would find out."""
    widens = True
    """True if subtasks may have different schemas. An operator that restores several goes on with types that hold them
    all."""

    side_schemas: Mapping[str, OneSchema] = MappingProxyType({})
    """Schemas of side outputs in columns, which no dataflow declares. Each side output is held to one schema, as the main
    output is. A join has those of its inputs here."""
    side_noun = "side output"
    """The word for what they are schemas of, for errors."""

    def restore(self, parts: list[MetaPart]) -> None:
        """Takes what `snapshot` returned in every old subtask of this operator, at whatever parallelism. Called before
        `open`."""

    def restore_floors(self, floors: list[tuple[int, int, int]]) -> None:
        """Takes the event time that old subtasks had reached, by their key groups [first, last). Called before `open` and
        after `restore`. A record that was late for an old subtask is late here, though the operator begins at the least
        of these times."""

    def floors(self) -> list[tuple[int, int, int]]:
        """Restored floors that event time has not reached."""
        return []

    def closed_times(self) -> list[tuple[int, int, int]]:
        """Key groups [first, last), each with the last microsecond up to which its windows are closed."""
        return []

    def restore_closed(self, closed: list[tuple[int, int, int]]) -> None:
        """Takes what `closed_times` returned in old subtasks. Called before `open` and after `restore`."""

    def prepared_output(self, checkpoint: int) -> list[tuple[int, bytes]]:
        """Parts to publish once the checkpoint is complete (sinks only), each with the first checkpoint that had it.
        Called after `snapshot(checkpoint)`."""
        return []

    def recordings(self) -> list[tuple[ChannelLog, Recording]]:
        """Channels into the operator whose records checkpoints hold as well. Each comes with what a file states of it,
        still without pieces, and with the recording that logs its records from `snapshot(checkpoint)` on."""
        return []

    def restore_log(self, channel: ChannelName, parallelism: int, frame: LogFrame) -> None:
        """Takes records that were in flight to an old subtask of this operator, which had that parallelism. Called before
        `open`, in the order of the old subtasks; the records of each channel come in order. Raises `IncompatibleState` if
        the operator has no such channel."""
        raise IncompatibleState(
            f"the checkpoint holds {frame.count} records in flight to {self.node.name!r} (channel {channel}), and nothing "
            f"in this dataflow can take them; start from a checkpoint without any, or start the dataflow as it was"
        )

    def logs_restored(self) -> None:
        """Called when all records in flight to this operator are restored."""

    def start_anew(self) -> None:
        """Called after `restore` if all old subtasks had finished and records come that were not there before."""

    def confirm(self, checkpoint: int) -> None:
        """Called when the checkpoint is complete. Every restore from now on knows of it."""

    def abort(self, checkpoint: int) -> None:
        """Called when the checkpoint will never be complete."""

    def contexts(self) -> list[OperatorContext]:
        """Contexts of the user's functions in the operator, for their metrics."""
        return [self.ctx]

    def state_entries(self) -> int:
        """Number of entries of keyed state, for the progress report."""
        return 0

    def figures(self) -> dict[str, float]:
        """Figures that are made for each progress report, by names that begin with that of the operator."""
        return {}

    def flush_side(self, split: int = -1) -> None:
        """Sends on what the user emitted to side outputs during the last call, for records of this split."""
        side = self.ctx.side
        if not side:
            return
        import numpy as np

        for tag, (values, times) in side.items():
            target = self.side_out.get(tag)
            if target is not None:
                target(Rows(values, np.array(times, np.int64), None, split))
        side.clear()

    def user_error(self, error: BaseException, *record: Any, what: str | None = None) -> UserCodeError:
        """`error` as an error of the user's code in this operator."""
        made = user_error(error, self.node.name, self.ctx.subtask, *record, what=what, written=self.node.written)
        self.note_call(made.call)
        return made

    def note_call(self, call: FailedCall) -> None:
        """Notes in the facts of a failed call those that the context has."""
        ctx = self.ctx
        call.operator, call.time, call.watermark = self, ctx.current_time, ctx.watermark_time
        if ctx.current_key is not ctx.no_key:
            call.key = ctx.current_key

    def note_batch(self, error: UserCodeError, batch: Batch, port: int) -> None:
        """Notes in an error the batch that this operator was given, if the error is one of this operator."""
        call = error.call
        if (
            isinstance(call, FailedCall)
            and call.batch is None
            and error.operator in [one.name for one in self.contexts()]
        ):
            call.batch, call.input_port = batch, port
            call.operator = call.operator or self

    def call_user(self, function: Callable[..., Any], *args: Any, what: str) -> Any:
        """Calls user code that has no record at hand (open, close, a sink's prepare)."""
        try:
            return call_user(function, *args, what=what, operator=self.node.name, subtask=self.ctx.subtask)
        except UserCodeError as error:
            self.note_call(error.call)
            error.call.what = what
            raise


def call_user(function: Callable[..., Any], *args: Any, what: str, operator: str, subtask: int) -> Any:
    """Calls user code that has no record at hand. An error that it raises becomes an error of this operator."""
    try:
        return function(*args)
    except Exception as error:
        message = f"{what} raised {raised_text(error)}"
        raise user_error(error, operator, subtask, what=message) from error


class Closing(Protocol):
    """Object that is closed at the end of a task."""

    def close(self) -> None: ...


def close_functions(functions: list[Any]) -> None:
    """Closes the functions that are instances of `Function`."""
    close_all([fn for fn in functions if isinstance(fn, Function)])


def close_all(closing: Sequence[Closing]) -> None:
    """Closes all of them, and raises the first error only then."""
    raised: list[Exception] = []
    for one in closing:
        try:
            one.close()
        except Exception as error:  # the rest must still be closed
            raised.append(error)
    if raised:
        raise raised[0]
