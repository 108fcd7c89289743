"""Entries of state with a time to live: the declaration, and the form that they have in tables and in files.

A table keeps a `StampedValue` in place of each value, each item of a list and each value of a mapping. It has the time of
the last write and not that of the end: a declaration with another lifetime holds for old entries as well. In bytes the times
are in front of the values.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from msgspec.structs import force_setattr

from tailrace.elements.durations import Duration, span_micros
from tailrace.elements.timestamps import NO_TIME
from tailrace.errors import ConfigError
from tailrace.state.codecs import Codec, Decode, StampedValue

UNSTAMPED = NO_TIME
"""Time of the last write of an entry that was written without one: by a program that declared no time to live, or another
clock for it."""
STAMPED = "stamped "
"""The beginning of the name of an encoding whose values carry the times of their last writes."""
_TIME = struct.Struct("<q")
_COUNT = struct.Struct("<I")
_TIMES = 1_024


@dataclass(frozen=True)
class Ttl:
    """A time to live: entries of state that are older than that are gone, `tr.ValueState(int, ttl=tr.Ttl(3600))`.

    - `lifetime`: seconds, a `timedelta` or a text such as "1 hour". An entry that was written at *t* is gone when the clock
      has come to *t* and the lifetime.
    - `refresh`: "write": each write of an entry begins its life anew. "read": each read does as well.
    - `clock`: "processing": the clock of the worker. "event": event time, which is the timestamp of the record or timer of
      the call, or the watermark where that is later.
    - `clock_stops_with_job`: True if the time does not count for which the job does not run; for "processing" only.

    The lifetime is of each value, each item of a list and each value of a mapping. Raises `ConfigError` for wrong arguments.
    """

    lifetime: Duration
    refresh: Literal["write", "read"] = "write"
    clock: Literal["processing", "event"] = "processing"
    clock_stops_with_job: bool = False

    def __post_init__(self) -> None:
        try:
            span = span_micros(self.lifetime)
        except (TypeError, ValueError, OverflowError) as error:
            raise ConfigError(f"Ttl: the lifetime: {error}") from None
        if span <= 0:
            raise ConfigError(f"Ttl: the lifetime must be longer than nothing, not {self.lifetime!r}")
        if self.refresh not in ("write", "read"):
            raise ConfigError(f'Ttl: refresh must be "write" or "read", not {self.refresh!r}')
        if self.clock not in ("processing", "event"):
            raise ConfigError(f'Ttl: clock must be "processing" or "event", not {self.clock!r}')
        if not isinstance(self.clock_stops_with_job, bool):
            raise ConfigError(f"Ttl: clock_stops_with_job must be True or False, not {self.clock_stops_with_job!r}")
        if self.clock_stops_with_job and self.clock == "event":
            raise ConfigError(
                'Ttl: event time stands still while a job is down: leave clock_stops_with_job out, or clock="event"'
            )

    @property
    def span(self) -> int:
        """The lifetime in microseconds."""
        return span_micros(self.lifetime)

    @property
    def stamps(self) -> str:
        """The name of the clock of its stamps, as files have it: stamps of another clock cannot be compared."""
        return "stopping" if self.clock_stops_with_job else self.clock


def check_ttl(ttl: Any, kind: str) -> Ttl | None:
    """The option `ttl` of a declaration, checked. Raises `ConfigError`."""
    if ttl is None or isinstance(ttl, Ttl):
        return ttl
    raise ConfigError(f"{kind} state: ttl must be a tr.Ttl, such as ttl=tr.Ttl({ttl!r}), not {type(ttl).__name__}")


# The form of entries, by the kind of their state.


def wrap(kind: str, value: Any, stamp: int) -> Any:
    """A value of a state without a time to live in the form of one that has it, written at this time."""
    if kind == "list":
        return [StampedValue(one, stamp) for one in value]
    if kind == "map":
        return {key: StampedValue(one, stamp) for key, one in value.items()}
    return StampedValue(value, stamp)


def unwrap(kind: str, held: Any) -> Any:
    """The value of an entry, without the times."""
    if kind == "list":
        return [one.value for one in held]
    if kind == "map":
        return {key: one.value for key, one in held.items()}
    return held.value


def with_times(kind: str, held: Any, since: int) -> Any:
    """An entry whose values that were written without a time count as written at `since`."""

    def set_time(one: StampedValue) -> StampedValue:
        return StampedValue(one.value, since) if one.stamp == UNSTAMPED else one

    if kind == "list":
        return list(map(set_time, held))
    return {key: set_time(one) for key, one in held.items()} if kind == "map" else set_time(held)


class SharedTimes:
    """Objects of times: of equal ones among some hundred there is one, so that entries of one time have it together."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}

    def of(self, time: int) -> int:
        """The object that stands for a time."""
        found = self._known.get(time)
        if found is None:
            if len(self._known) >= _TIMES:
                self._known.clear()
            found = self._known[time] = time
        return found

    def share(self, kind: str, held: Any) -> None:
        """Gives the values of an entry that was read these objects."""
        for one in held if kind == "list" else held.values() if kind == "map" else (held,):
            force_setattr(one, "stamp", self.of(one.stamp))


def living(kind: str, held: Any, lives: Callable[[int], bool]) -> Any:
    """The part of an entry that lives: itself if all of it does, and None if nothing does. `lives` takes the time of a
    write."""
    if kind == "list":
        kept = [one for one in held if lives(one.stamp)]
        return held if len(kept) == len(held) else kept or None
    if kind == "map":
        some = {key: one for key, one in held.items() if lives(one.stamp)}
        return held if len(some) == len(held) else some or None
    return held if lives(held.stamp) else None


def stamps_of(kind: str, held: Any) -> list[int]:
    """The times of the writes of an entry."""
    if kind == "list":
        return [one.stamp for one in held]
    return [one.stamp for one in held.values()] if kind == "map" else [held.stamp]


def stamps_in(kind: str, data: Any) -> tuple[int, ...]:
    """The times of the writes of an encoded entry, which is not decoded."""
    if kind not in ("list", "map"):
        return _TIME.unpack_from(data)
    (count,) = _COUNT.unpack_from(data)
    return struct.unpack_from(f"<{count}q", data, _COUNT.size)


def size_of(kind: str, held: Any) -> int:
    """Number of values in an entry."""
    return len(held) if kind in ("list", "map") else 1


# Bytes.


def stamped_codec(kind: str, plain: Codec) -> Codec:
    """The codec of a table with a time to live, which encodes values by `plain`."""
    inner = plain.encode

    def encode_one(held: Any) -> bytes:
        return _TIME.pack(held.stamp) + inner(held.value)

    def encode_all(held: Any) -> bytes:
        stamps = stamps_of(kind, held)
        head = struct.pack(f"<I{len(stamps)}q", len(stamps), *stamps)
        return head + inner(unwrap(kind, held))

    encode = encode_all if kind in ("list", "map") else encode_one
    return Codec(STAMPED + plain.name, encode, stamped_decoder(kind, plain.decode), plain.notes)


def stamped_decoder(kind: str, plain: Decode) -> Decode:
    """The function that decodes entries of a table with a time to live, whose values `plain` decodes."""

    def decode_one(data: Any) -> Any:
        return StampedValue(plain(data[_TIME.size :]), _TIME.unpack_from(data)[0])

    def decode_all(data: Any) -> Any:
        stamps = stamps_in(kind, data)
        values = plain(data[_COUNT.size + 8 * len(stamps) :])
        if kind == "list":
            return list(map(StampedValue, values, stamps))
        return dict(zip(values, map(StampedValue, values.values(), stamps), strict=True))

    return decode_all if kind in ("list", "map") else decode_one


def is_stamped(encoding: str) -> bool:
    """True if values of this encoding carry the times of their last writes."""
    return encoding.startswith(STAMPED)


def plain_encoding(encoding: str) -> str:
    """The encoding of the values themselves."""
    return encoding.removeprefix(STAMPED)
