"""What every operator can be asked at run time.

Operators of one vertex call each other directly, batch by batch: `process` ends in `self.out(batch)`. They never see
channels. Everything that could take long comes in bounded portions: `advance` and `fire_processing` take a limit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, Protocol

from tailrace.api.functions import Function
from tailrace.elements.batches import Batch, Rows
from tailrace.elements.columns.schemas import OneSchema
from tailrace.elements.frames import ChannelName
from tailrace.elements.timestamps import MIN_TIME
from tailrace.errors import IncompatibleState, UserCodeError
from tailrace.graph.graph import Node
from tailrace.graph.plan import Plan
from tailrace.state.backend import Backend, MetaPart
from tailrace.state.format import ChannelLog, TableInfo
from tailrace.task.channels.logs import LogFrame, Recording
from tailrace.task.contract.usercode import raised_text, user_error
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.groupchains import GroupChains

Emit = Callable[[Batch], None]


def nowhere(batch: Batch) -> None:
    """Where records go that nobody asked for."""


class OperatorTask:
    """One operator in one subtask."""

    generates_watermarks = False
    """Whether it makes its own watermarks and ignores those that come in."""
    stores_what_it_found = False
    """Whether what it finds of the world when it is opened first goes into checkpoints, so that it does not ask again."""

    def __init__(self, node: Node, ctx: OperatorContext) -> None:
        self.node = node
        self.ctx = ctx
        self.out: Emit = nowhere
        self.side_out: dict[str, Emit] = {}
        self.chains = GroupChains()

    @property
    def entry(self) -> Node:
        """The node that takes what comes to it: of several in one the first."""
        return self.node

    def planned(self, plan: Plan) -> None:
        """The chain is built: what else an operator has to know of the dataflow that it is in."""

    def open(self) -> None:
        """Called once before anything else."""

    def process(self, batch: Batch, port: int) -> None:
        """Takes a batch on an input port."""
        raise NotImplementedError

    def advance(self, time: int, limit: int) -> bool:
        """Event time has reached `time`: fires what is due, at most `limit` times. True when nothing is left."""
        self.ctx.watermark_time = time
        return True

    def done_until(self) -> int | None:
        """While timers are due: event time up to which all have fired, where those that are left give nothing as old as
        that. None where that cannot be told: a function may set a timer for a time that has been."""
        return None

    sees_each_timer = False
    """Whether its user code sees event time as it comes to each of its timers, and not as far as it has come."""

    def own_watermark(self) -> int:
        """The watermark an operator that generates watermarks stands at."""
        return MIN_TIME

    def next_event(self) -> int | None:
        """When its next event-time timer is due (int64 microseconds), or None."""
        return None

    def next_processing(self) -> int | None:
        """When the next processing-time timer is due (int64 microseconds), or None."""
        return None

    def fire_processing(self, now: int, limit: int) -> int:
        """Fires at most `limit` processing-time timers due at `now`; says how many."""
        return 0

    def awaited(self) -> bool:
        """Whether it has processing-time timers that the end waits for."""
        return not self.generates_watermarks and self.next_processing() is not None

    def at_rest(self) -> None:
        """In a loop, instead of `finish`: all that came was worked off and nothing is on its way. What is emitted now may
        bring the loop to work again; then this is called again."""
        self.rested = True

    def enter_rounds(self) -> None:
        """The operator is in a loop in rounds. Called before anything is restored."""
        self.at_round(0)

    def at_round(self, number: int) -> None:
        """The round of the records that come from here on."""
        for ctx in self.contexts():
            ctx.round = number

    def end_round(self, number: int, limit: int) -> bool:
        """One portion, of about `limit` calls, of what is to be done at the end of a round: all of its records were worked
        off here. True when that was all."""
        return True

    def input_ended(self) -> None:
        """All inputs have ended; pending processing-time timers are awaited from here on, or were dropped here."""

    def finish(self) -> None:
        """The last call before `close` of an operator whose input ended: emits what is left."""

    def close(self) -> None:
        """Gives everything back; called also after a failure. What user code raises is reported, not the cause of a
        failure."""

    # Checkpoints. See `docs/protocols/snapshot.md`.

    backend: Backend | None = None
    """Keyed state and timers, where the operator has any. Frozen, encoded and restored by the task."""
    chains: GroupChains
    """The files that hold the backend's state; set where there is a backend."""
    rested = False
    """Whether `at_rest` was called, in this attempt or before the checkpoint that it was restored from: `finish` has nothing
    more to say then."""
    rests = 0
    """The newest number of rest that it has done, likewise."""
    finished = False
    """Whether `finish` was called, in this attempt or before the checkpoint that it was restored from."""

    def snapshot(self, checkpoint: int) -> bytes | None:
        """At the cut: the operator's state that is not keyed, encoded; small. None where there is none."""
        return None

    def own_tables(self) -> list[TableInfo]:
        """What `snapshot` has just given, for those who see no more of it: each part with the classes of its values."""
        return []

    def cut_again(self, checkpoint: int) -> None:
        """A cut that was made before, in another process, for a checkpoint that will not be complete: what follows from it
        for the operator. `abort` comes next."""
        self.snapshot(checkpoint)

    one_schema: OneSchema | None = None
    """That of the columns that it takes or makes, where it holds them to one; in checkpoints (`task.operators.schemas`)."""
    one_schema_of: Literal["input", "output"] | None = None
    """Whether a schema that is declared before it, or behind it, stands for what it would find out."""
    widens = True
    """Whether its subtasks may differ, and go on with wider types than each had where several are restored into one."""

    side_schemas: Mapping[str, OneSchema] = MappingProxyType({})
    """Those of side outputs in columns, which nobody declares: they are held to one each, as the main output is."""

    def restore(self, parts: list[MetaPart]) -> None:
        """Before `open`: what `snapshot` gave in every old subtask of this operator, at whatever parallelism."""

    def restore_floors(self, floors: list[tuple[int, int, int]]) -> None:
        """Before `open`, after `restore`: event time that old subtasks had reached, by their key groups [first, last): what
        was late for one of them still is, though the operator begins at the least of them."""

    def floors(self) -> list[tuple[int, int, int]]:
        """Those of them that event time has not reached."""
        return []

    def prepared(self, checkpoint: int) -> list[tuple[int, bytes]]:
        """After `snapshot(checkpoint)`: what is to be published once that checkpoint is complete (sinks only), each with
        the checkpoint that had it first."""
        return []

    def recordings(self) -> list[tuple[ChannelLog, Recording]]:
        """The channels into it whose records checkpoints hold as well: what a file is to say of each, still without pieces;
        and where its records are logged, from `snapshot(checkpoint)` on."""
        return []

    def restore_log(self, channel: ChannelName, parallelism: int, frame: LogFrame) -> None:
        """Before `open`: records that were in flight to an old subtask of this operator, which had that parallelism. They
        come in the order of those subtasks, and those of each channel in order."""
        raise IncompatibleState(
            f"the checkpoint holds {frame.count} records in flight to {self.node.name!r} (channel {channel}), and nothing "
            f"in this dataflow can take them; start from a checkpoint without any, or start the dataflow as it was"
        )

    def logs_restored(self) -> None:
        """All records in flight to this operator are restored."""

    def start_anew(self) -> None:
        """After `restore`, where all of it had finished and records come that were not there before."""

    def confirm(self, checkpoint: int) -> None:
        """The checkpoint is complete: whatever restores from now on knows of it."""

    def abort(self, checkpoint: int) -> None:
        """The checkpoint will never be complete."""

    def contexts(self) -> list[OperatorContext]:
        """The contexts of the user's functions in it, for their metrics."""
        return [self.ctx]

    def state_entries(self) -> int:
        """How many entries of keyed state there are, for the progress report."""
        return 0

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
        return user_error(error, self.node.name, self.ctx.subtask, *record, what=what, written=self.node.written)

    def call_user(self, function: Callable[..., Any], *args: Any, what: str) -> Any:
        """Calls user code that has no record at hand (open, close, a sink's prepare)."""
        return call_user(function, *args, what=what, operator=self.node.name, subtask=self.ctx.subtask)


def call_user(function: Callable[..., Any], *args: Any, what: str, operator: str, subtask: int) -> Any:
    """Calls user code that has no record at hand; what it raises becomes an error of this operator."""
    try:
        return function(*args)
    except Exception as error:
        said = f"{what} raised {raised_text(error)}"
        raise user_error(error, operator, subtask, what=said) from error


class Closing(Protocol):
    """What is closed at the end of a task."""

    def close(self) -> None: ...


def close_functions(functions: list[Any]) -> None:
    """Closes those of the functions that are rich ones."""
    close_all([fn for fn in functions if isinstance(fn, Function)])


def close_all(closing: Sequence[Closing]) -> None:
    """Closes every one, and raises the first error only then."""
    raised: list[Exception] = []
    for one in closing:
        try:
            one.close()
        except Exception as error:  # the others must still be closed
            raised.append(error)
    if raised:
        raise raised[0]
