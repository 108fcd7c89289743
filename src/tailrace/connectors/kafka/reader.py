"""The reader of all partitions of a subtask, with one consumer."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa

from tailrace.api.connectors import AssignedSplit, SourceLag, SplitReader
from tailrace.connectors.kafka.client import PATIENCE, Options, calls, in_words, library, new_client
from tailrace.connectors.kafka.enumerator import PartitionSplit
from tailrace.connectors.kafka.formats import Decode, decode_all
from tailrace.connectors.kafka.identity import IdentityCheck
from tailrace.connectors.kafka.records import KafkaRecord
from tailrace.errors import ConfigError, TailraceError

WAIT = 0.1
"""Seconds that the waiting thread stays in the client at a time: a change of partitions waits for it."""
MOST_HELD = 1000
"""Number of messages of a paused partition from which on the client fetches no more of it."""
FALLBACK = 1.0
"""Seconds until the task reads although nothing has woken it."""
logger = logging.getLogger("tailrace")


class Form(NamedTuple):
    """The form of the records that a reader makes."""

    decode: Decode
    decode_key: Decode
    columns: Callable[[Sequence[bytes | None]], pa.RecordBatch] | None
    """The function that makes a batch of values; None in rows."""
    whole: bool
    """True if a record is all that Kafka has of it, and not the value alone."""

    def records(self, messages: list[Any]) -> Any:
        """The records of messages of one partition: a list, or a batch in columns. Raises `ValueError` that names the one
        that cannot be decoded."""
        try:
            return self._records(messages)
        except TailraceError:  # no record is to blame
            raise
        except Exception as error:
            raise self._error_of(messages, error) from error

    def _error_of(self, messages: list[Any], error: Exception) -> Exception:
        if len(messages) > 1:
            for message in messages:
                try:
                    self._records([message])
                except TailraceError:
                    raise
                except Exception as own:
                    return self._error_of([message], own)
        (one, *_) = messages
        return ValueError(
            f"the record at offset {one.offset()} of partition {one.partition()} of {one.topic()!r} cannot be decoded "
            f"({type(error).__name__}: {error}): {one.value()!r:.200}; from_source(..., on_error=tr.Aside(...)) sets such "
            f"records aside, in rows"
        )

    def _records(self, messages: list[Any]) -> Any:
        kind = type(messages[0])
        values = list(map(kind.value, messages))
        if self.columns is not None:
            batch = self.columns(values)
            return _with_more(batch, messages) if self.whole else batch
        if not self.whole:
            return values if self.decode is bytes else decode_all(self.decode, values)
        keys = decode_all(self.decode_key, map(kind.key, messages))
        return [self._whole(*one) for one in zip(messages, keys, decode_all(self.decode, values), strict=True)]

    def _whole(self, message: Any, key: Any, value: Any) -> KafkaRecord:
        return KafkaRecord(
            key,
            value,
            tuple(message.headers() or ()),
            _seconds(message.timestamp()),
            message.topic(),
            message.partition(),
            message.offset(),
        )


MORE = pa.schema(
    [
        ("key", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
    ]
)
"""The columns that `record=True` adds to those of the value."""


def _with_more(batch: pa.RecordBatch, messages: list[Any]) -> pa.RecordBatch:
    kind, count = type(messages[0]), len(messages)
    times = [None if how == 0 else at * 1000 for how, at in map(kind.timestamp, messages)]
    more = [
        pa.array(map(kind.key, messages), MORE.field("key").type),
        pa.array([messages[0].topic()] * count, MORE.field("topic").type),
        pa.array([messages[0].partition()] * count, MORE.field("partition").type),
        pa.array(map(kind.offset, messages), MORE.field("offset").type),
        pa.array(times, MORE.field("timestamp").type),
    ]
    return pa.RecordBatch.from_arrays([*batch.columns, *more], schema=pa.schema([*batch.schema, *MORE]))


def _seconds(stamp: tuple[int, int]) -> float | None:
    kind, millis = stamp
    return None if kind == 0 else millis / 1000


class PartitionReading:
    """A partition that is read."""

    def __init__(self, number: int, split: PartitionSplit, position: int) -> None:
        self.number, self.split, self.position = number, split, position
        self.seen = position
        """The offset behind all that has come."""
        self.end_seen: int | None = None
        """The end of the partition, while nothing has come from behind it."""
        self.held: list[Any] = []
        """Messages that came while the partition was paused."""
        self.newest: float | None = None
        """The time of the last record that was read."""
        self.high = -1
        """The end of the partition as far as the client knows it; negative before that."""

    @property
    def at_end(self) -> bool:
        """True if there is nothing behind the position, as far as the consumer knows."""
        return self.end_seen is not None and not self.held

    @property
    def over(self) -> bool:
        return self.split.end is not None and self.position >= self.split.end

    def note_messages(self, messages: list[Any]) -> None:
        self.seen, self.end_seen = messages[-1].offset() + 1, None

    def note_end(self, offset: int) -> None:
        self.high = max(self.high, offset)
        if offset >= self.seen:
            self.end_seen = offset

    def settle(self) -> None:
        """Moves the position to the end, if all before it was read. What takes up the offsets between is marks of
        transactions, and records of aborted ones."""
        if self.end_seen is not None and not self.held:
            self.position = max(self.position, self.end_seen)

    def take(self, messages: list[Any]) -> list[Any]:
        """The messages that are before the end of the split; the position moves behind them."""
        end = self.split.end
        if end is not None and messages[-1].offset() >= end:
            messages = [message for message in messages if message.offset() < end]
            self.position, self.held = end, []
        return messages

    def note_read(self, messages: list[Any]) -> None:
        self.newest = _seconds(messages[-1].timestamp())
        self.position = max(self.position, messages[-1].offset() + 1)


class KafkaReader(SplitReader):
    """The reader of the partitions of one subtask.

    A thread waits in the consumer while there are no records, takes the first one that comes, and wakes the task. So the
    consumer is in the hands of the task, or, between a read that found nothing and that record, in those of the thread.
    Two threads in one consumer hang, and all of the process with them. Offsets are committed in a third thread, by a client
    of its own.
    """

    lost_unit = "records"

    def __init__(self, servers: str, options: Options, group: str, form: Form, committed: bool, if_lost: str) -> None:
        self._servers, self._options, self._form, self._if_lost = servers, options, form, if_lost
        self._ids: dict[str, str] = {}
        """Ids of the topics of all splits so far, as far as they are known."""
        self._checked: dict[str, str] = {}
        self._identity: IdentityCheck | None = None
        """A check of ids that is not over."""
        ours = {"group.id": group, "enable.auto.commit": False}
        self._committer = Committer(servers, options, ours)
        own = {
            **ours,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "error_cb": self._note_error,
        }
        self._consumer: Any = new_client(library().Consumer, servers, options, own)
        self._splits: dict[int, PartitionReading] = {}
        self._places: dict[tuple[str, int], PartitionReading] = {}
        self._done: dict[int, PartitionReading] = {}
        self._paused: set[int] = set()
        self._stopped: set[int] = set()
        """Partitions of which the client fetches nothing."""
        self._waiter = Waiter(self._consumer, servers, lambda: self.wake(), self._look_at_ends)

    def assign(self, splits: Sequence[AssignedSplit]) -> None:
        added: list[Any] = []
        for number, split, position in splits:
            reading = PartitionReading(number, PartitionSplit(*split), split[2] if position is None else position)
            self._splits[number] = self._places[reading.split[:2]] = reading
            if not reading.over:
                added.append(self._partition(reading))
                if reading.split.topic_id is not None:
                    self._ids[reading.split.topic] = reading.split.topic_id
        self._check_identity()
        if added:
            self._waiter.take_back()
            self._call("reading", lambda: self._consumer.incremental_assign(added))

    def _check_identity(self) -> None:
        """Begins to look whether topics are still those of the splits. Nothing is read before that is known."""
        if self._ids.keys() - self._checked.keys():
            if self._identity is not None:
                self._identity.close()
            self._checked = dict(self._ids)
            self._identity = IdentityCheck(self._servers, self._options, self._checked, lambda: self.wake())

    def revoke(self, splits: Sequence[int]) -> None:
        early = self._waiter.take_back()
        self._remove([self._splits[number] for number in splits if number in self._splits])
        self._waiter.early = [one for one in early if (one.topic(), one.partition()) in self._places]

    def _remove(self, readings: list[PartitionReading]) -> None:
        """Gives partitions up, and what is under way from them."""
        self._waiter.take_back()
        held = {(one.topic, one.partition) for one in self._consumer.assignment()}
        gone = [self._partition(one) for one in readings if one.split[:2] in held]
        if gone:
            self._call("reading", lambda: self._consumer.incremental_unassign(gone))
        for one in readings:
            del self._splits[one.number], self._places[one.split[:2]]
            self._paused.discard(one.number)
            self._stopped.discard(one.number)

    def pause(self, splits: Collection[int]) -> None:
        self._paused = {number for number in splits if number in self._splits}

    def _slow_down(self) -> None:
        """Has the client fetch nothing more of partitions that are paused and hold enough, and go on with others. Only
        while the task has the consumer: the client hangs if another thread is in it."""
        held = {n for n, one in self._splits.items() if len(one.held) >= (1 if n in self._stopped else MOST_HELD)}
        for change, numbers in (
            (self._consumer.pause, held - self._stopped),
            (self._consumer.resume, self._stopped - held),
        ):
            readings = [one for number in numbers if (one := self._splits.get(number)) is not None]
            if readings:
                self._call("pausing", partial(change, [self._partition(one) for one in readings]))
        self._stopped = held

    def read(self, limit: int, now: float) -> Iterable[tuple[int, Any]]:
        if self._identity is not None:
            if not self._identity.is_over():
                return ()
            self._identity = None
        found: list[tuple[int, Any]] = []
        for one in [each for each in self._splits.values() if each.held and each.number not in self._paused]:
            messages, one.held = one.held[:limit], one.held[limit:]
            limit -= len(messages)
            found += self._take(one, messages)
        if any(not self._splits[number].held for number in self._stopped):
            self._waiter.take_back()  # else it waits for what the client does not fetch
        if limit and not self._waiter.waits:
            if self._paused or self._stopped:
                self._slow_down()
            found += self._newly_come(limit)
        over = [one for one in self._splits.values() if one.over and one.number not in self._paused]
        if over:
            self._remove(over)
            self._done.update((one.number, one) for one in over)
            found += [(one.number, None) for one in over]
        if not found and self._splits:
            self._waiter.wait()
        got = {number for number, _ in found}
        found += [(n, ()) for n, one in self._splits.items() if one.at_end and n not in got and n not in self._paused]
        return found

    def _newly_come(self, limit: int) -> list[tuple[int, Any]]:
        """The records of at most `limit` messages that have come, by split."""
        messages, self._waiter.early = self._waiter.early, []
        if limit > len(messages):
            messages += self._call("reading", lambda: self._consumer.consume(limit - len(messages), 0))
        if not messages:
            return []
        events: list[Any] = []
        if any(map(type(messages[0]).error, messages)):
            events = [one for one in messages if one.error() is not None]
            messages = [one for one in messages if one.error() is None]
        found: list[tuple[int, Any]] = []
        for place, own in _by_place(messages).items():
            reading = self._places.get(place)
            if reading is not None:
                reading.note_messages(own)
                found += self._take(reading, own)
        for event in events:
            self._note(event)
        return found

    def _take(self, one: PartitionReading, messages: list[Any]) -> list[tuple[int, Any]]:
        """The records of messages of a partition, up to its end; none of them while it is paused."""
        if one.number in self._paused:
            one.held += messages
            return []
        messages = one.take(messages)
        if not messages:
            return []
        records = self._form.records(messages)
        one.note_read(messages)
        one.settle()
        return [(one.number, records)]

    def _note(self, event: Any) -> None:
        """Handles an event of a partition that is no record."""
        one = self._places.get((event.topic(), event.partition()))
        error, kinds = event.error(), library().KafkaError
        if one is None:
            return
        if error.code() == kinds._PARTITION_EOF:
            one.note_end(event.offset())
            one.settle()
        elif error.code() in (kinds._AUTO_OFFSET_RESET, kinds.OFFSET_OUT_OF_RANGE):
            self._pass_gap(one)
        else:
            raised = in_words(self._servers, f"reading partition {one.split.partition} of {one.split.topic!r}", error)
            if not isinstance(raised, ConnectionError):
                raise raised
            logger.warning("%s; the client tries again", raised)

    def _pass_gap(self, one: PartitionReading) -> None:
        """Goes on at the first record that is left, where `if_lost` allows that; raises `ConfigError` else."""
        where = self._partition(one)
        low, high = self._call("offsets", lambda: self._consumer.get_watermark_offsets(where, timeout=PATIENCE))
        at = max(one.position, one.seen)  # behind what is held
        text = (
            f"Kafka at {self._servers}: the job goes on at offset {at} of partition {one.split.partition} of "
            f"{one.split.topic!r}, which has offsets {low} to {high}"
        )
        if at > high:
            raise ConfigError(
                f"{text}: it was emptied or made anew, or its server has lost records. Start the job without the "
                f"checkpoint, or give the source another uid"
            )
        if self._if_lost == "fail":
            raise ConfigError(
                f"{text}: retention has removed {low - at} that were not read. To go on without them give the "
                f'source if_lost="count"'
            )
        logger.warning("%s: %d that were not read are lost", text, low - at)
        self.lost += low - at
        self._call("reading", lambda: self._consumer.incremental_unassign([where]))
        one.seen = low
        if not one.held:
            one.position = low
        found = library().TopicPartition(one.split.topic, one.split.partition, low)
        self._call("reading", lambda: self._consumer.incremental_assign([found]))

    def _partition(self, one: PartitionReading) -> Any:
        """A partition for the client, at the position."""
        return library().TopicPartition(one.split.topic, one.split.partition, one.position)

    def _call(self, what: str, call: Any) -> Any:
        return calls(self._servers, what, call)

    def _note_error(self, error: Any) -> None:
        logger.warning("Kafka at %s: %s", self._servers, error.str())

    def next_at(self, now: float) -> float:
        waits = self._waiter.waits or self._identity is not None or not self._splits
        return now + FALLBACK if waits else now

    # Positions.

    def position(self, split: int) -> int:
        return (self._splits.get(split) or self._done[split]).position

    def completed(self, positions: Mapping[int, Any]) -> None:
        """Commits positions for those who watch the group. The source does not read them."""
        offsets = []
        for number, position in positions.items():
            one = self._splits.get(number) or self._done.get(number)
            if one is not None and position is not None:
                offsets.append(library().TopicPartition(one.split.topic, one.split.partition, position))
        if offsets:
            self._committer.commit(offsets)

    def _look_at_ends(self) -> None:
        """Notes the ends of partitions that the client knows, in the thread that has the consumer."""
        for one in list(self._splits.values()):
            _, high = self._consumer.get_watermark_offsets(self._partition(one), cached=True)
            if high >= 0:
                one.high = high

    def lag(self, now: float) -> Mapping[int, SourceLag]:
        if not self._waiter.waits:
            self._look_at_ends()
        found: dict[int, SourceLag] = {}
        for number, one in self._splits.items():
            if one.high >= 0:
                records = max(0, one.high - one.position)
                seconds = 0.0 if not records else None if one.newest is None else max(0.0, now - one.newest)
                found[number] = SourceLag(records, seconds)
        return found

    def close(self) -> None:
        if self._identity is not None:
            self._identity.close()
        self._waiter.close()
        self._consumer.close()
        self._committer.close()


def _by_place(messages: list[Any]) -> dict[tuple[str, int], list[Any]]:
    """Messages by topic and partition. As a rule they are of one topic."""
    if not messages:
        return {}
    kind = type(messages[0])
    topics, places = list(map(kind.topic, messages)), list(map(kind.partition, messages))
    if len(set(topics)) > 1:
        places = list(zip(topics, places, strict=True))
    groups: dict[Any, list[Any]] = {places[0]: messages}
    if len(set(places)) > 1:
        groups = defaultdict(list)
        for place, message in zip(places, messages, strict=True):
            groups[place].append(message)
    return {(own[0].topic(), own[0].partition()): own for own in groups.values()}


class Committer:
    """A client that commits offsets of a group and reads nothing. It connects with the first commit."""

    def __init__(self, servers: str, options: Options, own: Options) -> None:
        self._servers, self._options, self._own = servers, options, own
        self._used = threading.Lock()
        self._client: Any = None

    def commit(self, offsets: list[Any]) -> None:
        with self._used:
            if self._client is None:
                self._client = new_client(library().Consumer, self._servers, self._options, self._own)
            client = self._client
            calls(self._servers, "committing offsets", lambda: client.commit(offsets=offsets, asynchronous=False))

    def close(self) -> None:
        """Closes the client, unless it waits for a server that does not answer."""
        if self._used.acquire(blocking=False):
            if self._client is not None:
                self._client.close()
            self._used.release()


class Waiter:
    """The thread that waits in the consumer. It has the consumer from `wait` until a message has come, and calls `look`
    each time that it has waited."""

    def __init__(self, consumer: Any, servers: str, wake: Callable[[], None], look: Callable[[], None]) -> None:
        self._consumer, self._servers, self._wake, self._look = consumer, servers, wake, look
        self.waits = False
        """True while the thread has the consumer."""
        self.early: list[Any] = []
        """Messages that the thread has taken."""
        self._changed = threading.Condition()
        self._back = self._closed = False
        self._thread: threading.Thread | None = None

    def wait(self) -> None:
        """Gives the consumer to the thread, unless something has come."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="tailrace-kafka", daemon=True)
            self._thread.start()
        with self._changed:
            self.waits = self.waits or not self.early
            self._changed.notify_all()

    def take_back(self) -> list[Any]:
        """Takes the consumer from the thread, which needs a moment; returns what has come meanwhile."""
        self._back = True
        with self._changed:
            self._changed.wait_for(lambda: not self.waits)
        self._back = False
        return self.early

    def close(self) -> None:
        """Ends the thread."""
        self.take_back()
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self.waits or self._closed)
            if self._closed:
                return
            came: list[Any] = []
            while not came and not self._back:
                try:
                    came = self._consumer.consume(1, WAIT)
                    self._look()
                except Exception as error:  # the task meets it in its own call
                    logger.warning("Kafka at %s: %s", self._servers, error)
                    break
            with self._changed:
                self.early += came
                self.waits = False
                self._changed.notify_all()
            self._wake()
