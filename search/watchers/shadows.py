"""Shadows of simulated workers. A fresh worker, restored from the newest checkpoint, replays beside a worker what that has
done. It must come to the worker's state.

The worker goes on as if nothing had happened. So every moment of every scenario can be checked.
"""

from __future__ import annotations

import itertools
import pickle
import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from search.watchers.checker import BOOKS, Book, Ledger
from search.watchers.tables import entries_of
from tailrace.elements.frame_codec import ChannelId, encode_marker
from tailrace.elements.frame_codec import decode as decode_frame
from tailrace.elements.markers import TIMES, Barrier, EndOfInput, Marker
from tailrace.errors import InternalError, UserCodeError
from tailrace.protocol.deployment import Deploy, Phase
from tailrace.protocol.replay import Resume
from tailrace.state.layers import LayeredBackend
from tailrace.state.manifest import decode_manifest
from tailrace.state.paths import manifest_name, manifest_place
from tailrace.storage.manifest_slots import holds_manifest
from tailrace.storage.reading import read_placed, read_state
from tailrace.task.channels.inputs import InputChannel
from tailrace.task.channels.outbox import Outbox, OutputChannel
from tailrace.task.channels.spilling import Item
from tailrace.task.contract.actions import ReadPlaced, ReadState
from tailrace.task.contract.jobspec import JobSpec
from tailrace.task.contract.outside import Outside
from tailrace.task.failover.replay import Again
from tailrace.task.failover.replayable_slice import ReplayableSlice
from tailrace.task.journal.replayable_gate import ANY
from tailrace.task.journal.replayable_outbox import outbox_of
from tailrace.task.journal.task_state import objects, state_of
from tailrace.task.operators.loops import TailTask
from tailrace.task.slice.machine import Slice
from tailrace.task.slice.preparation import prepare_functions, with_functions_of_its_own
from tailrace.task.subtask.loop import TaskLoop
from tailrace.task.subtask.loop_waves import LoopWaves
from tailrace.task.subtask.machine import Task
from tailrace.task.worker.attempt import Attempt
from tailrace.testing.calls import SimulatedCalls
from tailrace.testing.simulator import Simulation
from tailrace.testing.world import Observer, SimulatedProcess

_SHOWN = 400


class Shadows(Observer):
    """An observer that checks one worker of a job now and then, by its own seed. Differences are in `wrong`."""

    def __init__(self, seed: int, every: int = 150) -> None:
        self.wrong: list[str] = []
        self.compared = self.restored = self.entries = 0
        """Number of shadows that were compared; number of these that had been restored; number of entries that they
        replayed."""
        self.cut_short = 0
        """Number of times that there was no shadow to compare, because a history did not reach back to the newest
        checkpoint."""
        self.in_flight = self.came_back = 0
        """Number of shadows that were restored from a checkpoint with records in flight; and of those that had some that
        an earlier checkpoint had brought back."""
        self._every = every
        self._chance = random.Random(f"tailrace shadows {seed}")
        self._turn = 0

    def over(self, world: Simulation) -> None:
        """Checks the workers of this simulation from now on. It must have been made with a `depth`."""
        self._world, self._turn = world, self._chance.randint(1, self._every)
        world.watch(self)

    def on_line(self, line: str) -> None:
        if self._world.turns < self._turn or self.wrong:
            return
        self._turn = self._world.turns + self._chance.randint(1, self._every)
        processes = list(self._world.processes.values())
        if self._all_run(processes):
            self._look(processes, self._chance.choice(processes))

    def _all_run(self, processes: list[SimulatedProcess]) -> bool:
        slots = {process.slot for process in processes}
        running = all(p.machine.phase in (Phase.RUNNING, Phase.FINISHED) and not p.machine.failed for p in processes)
        same = len({process.machine.incarnation for process in processes}) == 1
        going = all(p.machine.attempt is not None and not p.machine.attempt.closed for p in processes)
        return running and same and going and len(processes) == len(slots) == self._world.plan.slots

    def _look(self, processes: list[SimulatedProcess], process: SimulatedProcess) -> None:
        slices = [_slice(one) for one in processes]
        base = self._newest(process.machine.incarnation)
        attempt = process.machine.attempt
        assert attempt is not None
        assert attempt.recorded is not None
        history = attempt.recorded.history
        if not history.everything().reaches_back_to(base):
            self.cut_short += 1
            return
        where = f"turn {self._world.turns}, worker {process.slot}, from checkpoint {base}"
        try:
            shadow = self.shadow(process, attempt, base)
            assert shadow.resumed is not None and shadow.recorded is not None
            again, front = shadow.resumed.again, any(task.gate.front for task in shadow.slice.tasks)
            for other in slices:
                if other.slot != process.slot:
                    _feed(shadow.slice, other, base)
            if not self._is_done(shadow, again):
                self.wrong.append(f"{where}: {len(again.left)} entries wait: {str(again.left[0])[:_SHOWN]}")
                return
        except (InternalError, UserCodeError) as error:
            self.wrong.append(f"{where}: {error}")
            return
        self.compared += 1
        self.restored += base > 0
        self.came_back += front
        self.in_flight += base > 0 and bool(decode_manifest(shadow.origin[0], "manifest").in_flight)
        self.entries += len(history.entries)
        self.wrong += [
            f"{where}: {one}"
            for one in itertools.islice(_differences(attempt.recorded, shadow.recorded, base, again.by_task), 3)
        ]

    def _newest(self, incarnation: int) -> int:
        """The newest complete checkpoint of an attempt, whether its workers have received that or not; 0 where there is
        none."""
        complete = [name for name, data in self._world.files.contents.items() if holds_manifest(bytes(data))]
        places = [place for place in map(manifest_place, complete) if place is not None]
        return max((number for made, number in places if made == incarnation), default=0)

    def shadow(self, process: SimulatedProcess, attempt: Attempt, base: int, resume: Resume | None = None) -> Attempt:
        """A fresh attempt, restored and opened. `resume`: what it resumes, if that is not what the worker has done."""
        worker = process.machine
        files = self._world.files
        manifest, folder = attempt.origin
        if base:
            manifest, folder = bytes(files.contents[manifest_name(worker.incarnation, base)]), ""
        own = bool(manifest) and decode_manifest(manifest, "manifest").run_id == attempt.slice.services.run_id
        deploy = Deploy(b"", [], worker.incarnation, attempt.slice.attempt, manifest, folder, own)
        spec = with_functions_of_its_own(_with_other_books(worker._standing.load(b"")))
        services = worker.services_of(spec, deploy)
        services.outside = Outside()
        services.outside.calls = SimulatedCalls()
        prepare_functions(spec, process.slot, services, only_here=True)
        assert attempt.recorded is not None
        history, values = attempt.recorded.history, list(_values_sent(attempt.recorded))
        in_flight = sorted(attempt.slice.services.in_flight)
        resume = resume or Resume(deploy, base, history.everything(), [], in_flight=in_flight, values=values)
        shadow = Attempt(spec, process.slot, 0, deploy, services, itertools.count(1), resume)
        actions = shadow.begin(deploy)
        if manifest:
            (read,) = (action for action in actions if isinstance(action, ReadState))
            store = self._world.storage.store_in(folder)
            with self._world.storage.calm():
                found = decode_manifest(manifest, "manifest")
                for part in read_state(store, found, read.required, worker=read.worker):
                    shadow.restore(part)
            shadow.end_restore()
        return shadow

    def _is_done(self, shadow: Attempt, again: Again) -> bool:
        """Replays a shadow, with the records that it reads meanwhile. True where it comes to the end of its history."""
        while not again.go_on():
            actions = [action for action in shadow.loads() if isinstance(action, ReadPlaced)]
            if not actions and not again.moved:
                return False
            with self._world.storage.calm():
                store = self._world.storage.store_in("")
                for one in actions:
                    shadow.records_read(one.number, [read_placed(store, placed) for placed in one.required])
        return True


def _with_other_books(spec: JobSpec) -> JobSpec:
    """The job, with sinks that write into books that are not checked."""
    for node in spec.plan.graph.nodes:
        sink = getattr(node.operator, "sink", None)
        if isinstance(sink, Ledger):
            sink.name = "of a shadow"
            BOOKS[sink.name] = Book()
    return spec


def _slice(process: SimulatedProcess) -> ReplayableSlice:
    slice = process.machine.slice
    assert isinstance(slice, ReplayableSlice)
    return slice


def _feed(shadow: Slice, other: ReplayableSlice, base: int) -> None:
    """Gives a shadow the frames that a living worker has kept for it. They come at once, whatever credit was granted."""
    for task in shadow.tasks:
        for incoming in task.gate.channels.values():
            incoming.flow.granted = ANY
    for task in other.tasks:
        for ident, channel in task.outbox.channels.items():
            if ident.target == shadow.slot:
                for seq, one in kept_since(channel, base, other):
                    if not isinstance(one, Barrier):  # its checkpoint was given up, or will be
                        shadow.receive(decode_frame(_encode(task.outbox, ident, seq, one)), other.slot)


def _values_sent(slice: ReplayableSlice) -> Iterator[tuple[int, int, int, int, int]]:
    """The digests of the values that a worker has sealed for other workers so far, as these report them."""
    for task in slice.tasks:
        for ident, digest in outbox_of(task).values.items():
            if digest.value is not None:
                yield *ident, task.outbox.channels[ident].seq, digest.value


def kept_since(channel: OutputChannel, base: int, of: ReplayableSlice) -> list[tuple[int, bytes | Marker]]:
    """The elements that a channel of a worker has kept behind the barrier of a complete checkpoint, whether the worker
    knows that it is complete or not."""
    (log,) = [logs[channel.id] for task in of.tasks if channel.id in (logs := outbox_of(task).logs)]
    kept = list(log.elements())
    for at, (_, one) in enumerate(kept):
        if base and isinstance(one, Barrier) and one.checkpoint == base:
            return kept[at + 1 :]
    if of.history.since < base and kept and isinstance(kept[-1][1], EndOfInput):
        return []  # the channel had ended before the cut
    return kept


def _differences(one: ReplayableSlice, other: ReplayableSlice, base: int, in_any_frames: bool) -> Iterator[str]:
    for was, now in zip(one.tasks, other.tasks, strict=True):
        for difference in itertools.chain(
            _of_channels(was, now, base, one, in_any_frames),
            differences_of_state(was, now),
            differences_of_the_rest(was, now, in_any_frames),
        ):
            yield f"{was.id} {was.chain.root.node.name}: {difference}"
        if outbox_of(now).received.differ:
            yield f"{was.id}: digests of values differ on channels {sorted(outbox_of(now).received.differ)}"


def _of_channels(was: Task, now: Task, base: int, of: ReplayableSlice, in_any_frames: bool) -> Iterator[str]:
    for ident, channel in was.outbox.channels.items():
        again = now.outbox.channels[ident]
        if channel.local:
            continue
        waits = [(seq, payload) for seq, payload, _ in channel.queue]
        before = _frames(was.outbox, ident, [*kept_since(channel, base, of), *waits])
        after = _frames(was.outbox, ident, outbox_of(now).logs[ident].elements())
        if in_any_frames:
            yield from _in_any_frames(ident, before, channel, after, again)
            continue
        for number, (a, b) in enumerate(zip(before, after, strict=False)):
            if a != b and _values(a) != _values(b):
                yield f"channel {ident}, element {number}: was {_text_of(a)}, now {_text_of(b)}"
                return
        if len(before) != len(after):
            more = (before if len(before) > len(after) else after)[min(len(before), len(after))]
            yield f"channel {ident}: {len(before)} elements, now {len(after)}: {_text_of(more)}"
        if channel.buffered != again.buffered:
            yield f"channel {ident}: {channel.buffered} records are gathered, now {again.buffered}"


def _in_any_frames(
    ident: ChannelId, before: list[bytes], was: OutputChannel, after: list[bytes], now: OutputChannel
) -> Iterator[str]:
    """Differences of two channels where frames may end elsewhere: in what was sent, and in what is gathered behind
    that."""
    gone, again = [*_one_by_one(before, was)], [*_one_by_one(after, now)]
    for number, (a, b) in enumerate(itertools.zip_longest(gone, again)):
        if a != b:
            yield f"channel {ident}, record or marker {number}: was {_short(a)}, now {_short(b)}"
            return


def _one_by_one(frames: list[bytes], gathered: OutputChannel) -> Iterator[Any]:
    """The records of frames and batches, each with its event time and key group, and the markers between them. Those of
    event time are left out: their readers have them in their histories."""
    batches: list[Any] = []
    for data in frames:
        frame = decode_frame(data)
        batches.append(frame.batch() if frame.count else frame.marker())
    for one in [*batches, *gathered.buffer]:
        if isinstance(one, Marker):
            yield from () if isinstance(one, TIMES) else (one,)
        else:
            times = [None] * len(one) if one.times is None else one.times.tolist()
            groups = [None] * len(one) if one.groups is None else one.groups.tolist()
            yield from zip(map(_in_its_order, one.to_rows().values), times, groups, strict=True)


def _frames(outbox: Outbox, ident: ChannelId, elements: Iterable[tuple[int, Any]]) -> list[bytes]:
    """Elements of a channel, without barriers, as they travel."""
    return [_encode(outbox, ident, seq, one) for seq, one in elements if not isinstance(one, Barrier)]


def _encode(outbox: Outbox, ident: ChannelId, seq: int, payload: Any) -> bytes:
    if isinstance(payload, Marker):
        return encode_marker(ident, outbox.incarnation, outbox.attempt, seq, payload)
    data: bytes = outbox.frame(payload) if isinstance(payload, Item) else payload
    return data


def _values(data: bytes) -> Any:
    """The contents of a frame. Equal records may have other bytes: an object that several records share is pickled once,
    and equal objects are pickled each."""
    frame = decode_frame(data)
    if not frame.count:
        return frame.marker()
    rows = frame.batch().to_rows()
    return frame.seq, _in_its_order(rows.values), bytes(frame.times), bytes(frame.groups)


def _in_its_order(value: Any) -> Any:
    """A form of a value that equals another one only where both are walked in the same order."""
    if isinstance(value, set | frozenset):
        return "in this order", [_in_its_order(one) for one in value]
    if isinstance(value, dict):
        return "in this order", [(_in_its_order(key), _in_its_order(one)) for key, one in value.items()]
    return [_in_its_order(one) for one in value] if type(value) in (list, tuple) else value


def _text_of(data: bytes) -> str:
    frame = decode_frame(data)
    return f"kind {frame.kind} seq {frame.seq} x{frame.count} number {frame.number} {data[-60:]!r}"


def differences_of_state(was: Task, now: Task) -> Iterator[str]:
    """Differences in the keyed state of two tasks."""
    for one, other in zip(was.chain.operators, now.chain.operators, strict=True):
        if not isinstance(one.backend, LayeredBackend) or not isinstance(other.backend, LayeredBackend):
            continue
        for name, table in one.backend.tables.items():
            before, after = list(entries_of(table)), list(entries_of(other.backend.tables[name]))
            if table.info.kind in ("timers", "rounds"):  # only the order in which they came counts
                before, after = _in_order(before), _in_order(after)
            if sorted(map(repr, before)) != sorted(map(repr, after)):
                yield f"table {name!r} of {one.node.name!r}: was {_short(before)}, now {_short(after)}"


def _in_order(timers: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    return [(at, timer) for at, (timer, _) in enumerate(sorted(timers, key=lambda timer: timer[1]))]


def differences_of_the_rest(was: Task, now: Task, in_any_frames: bool = False) -> Iterator[str]:
    """Differences in the rest of the state of two tasks. `in_any_frames`: whether they may have other frames."""
    before, after = pickle.loads(state_of(was)), pickle.loads(state_of(now))
    for known in (before, after):
        known["states"] = {
            f"{number} {type(one).__name__}": _compared(one, state, in_any_frames)
            for number, (one, state) in enumerate(zip(objects(was), known["states"], strict=True))
        }
    for name in before:
        for where, a, b in _apart(name, _plain(before[name]), _plain(after[name])):
            yield f"{where}: was {_short(a)}, now {_short(b)}"


def _compared(one: object, state: dict[str, Any], in_any_frames: bool) -> dict[str, Any]:
    """The part of an object's state that a replay must have come to."""
    unlike = {
        "_cuts",  # checkpoints that are under way are given up
        "_regular_turn",  # the order of turns is in the history
        "records_in",
    }
    if in_any_frames:
        if isinstance(one, OutputChannel):  # a report that is to be sent, or was sent with another frame
            state["idle"] = state["idle_due"] or (state["idle_sent"] and not state["awake_due"])
        unlike |= {"seq", "sealed", "record_bytes", "values"}
        if isinstance(one, OutputChannel | InputChannel):  # watermarks go where frames end
            unlike |= {"marks"}
        unlike |= {"watermark_sent", "awake_due", "idle_due", "idle_sent", "idle_waits"}
    if isinstance(one, Task) and state["said_end"]:
        unlike.add("finished")  # this depends on credit that may still be on its way
    if isinstance(one, TaskLoop):
        # Commands come with the cuts that they are behind: those under way are given up.
        state["commands"] = [command for command, _ in state["commands"]]
        state["_kept"] = {kind: command for kind, (command, _) in state["_kept"].items()}
    if isinstance(one, LoopWaves):
        # Records on their way around are there from the beginning, so a wave may find more to do than there was: then
        # nothing follows from it.
        state["cut"] = replace(state["cut"], obliged=False, times={})
    if isinstance(one, TailTask):
        state["marks"] = [wave for wave, _ in state["marks"]]  # marks may have come a little later
    return {name: value for name, value in state.items() if name not in unlike}


def _apart(where: str, one: Any, other: Any) -> Iterator[tuple[str, Any, Any]]:
    """The places where two plain values differ."""
    if one == other:
        return
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        for key in one:
            yield from _apart(f"{where}.{key}", one[key], other[key])
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        for number, pair in enumerate(zip(one, other, strict=True)):
            yield from _apart(f"{where}[{number}]", *pair)
    else:
        yield where, one, other


def _plain(value: Any) -> Any:
    """A form of a value that can be compared, also for objects that cannot."""
    if isinstance(value, dict):
        return {"in this order": list(map(repr, value)), **{repr(key): _plain(one) for key, one in value.items()}}
    if isinstance(value, str | bytes | int | float | None):
        return value
    if isinstance(value, Iterable):
        return sorted(map(repr, map(_plain, value))) if isinstance(value, set) else [_plain(one) for one in value]
    if hasattr(value, "__dict__"):
        return type(value).__name__, _plain(vars(value))
    return repr(value)


def _short(value: object) -> str:
    return str(value)[:_SHOWN]
