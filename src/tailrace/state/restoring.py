"""The decoding of blocks of a checkpoint into the entries of the tables of one operator, and the refusal of blocks that do
not fit."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from typing import Any

from tailrace.elements.keypickling import ChangedKeyClass
from tailrace.elements.plainkeys import plain_key
from tailrace.elements.valueclasses import ChangedClass, Shapes, merge
from tailrace.errors import IncompatibleState, TailraceError, error_text
from tailrace.state.blocks import Encoder
from tailrace.state.codecs import Decode, Entries, decoder, unpack
from tailrace.state.declarations import other_class, other_type, takes, type_name
from tailrace.state.format import UNRELEASED, TableInfo
from tailrace.state.memory_tables import MemoryBase
from tailrace.state.pickle_roundtrip import comes_back
from tailrace.state.tables import StateTable
from tailrace.state.ttl import (
    UNSTAMPED,
    SharedTimes,
    is_stamped,
    living,
    plain_encoding,
    stamped_decoder,
    stamps_in,
    unwrap,
    with_times,
    wrap,
)
from tailrace.state.ttl_lifetimes import Expiry, ExpiryOf


def _as_it_is(value: Any) -> Any:
    return value


class Restoring:
    """The restore of the state of one operator."""

    def __init__(
        self,
        encoder: Encoder,
        uid: str,
        tables: Mapping[str, StateTable],
        allow_dropped: bool,
    ) -> None:
        self._encoder = encoder
        self._uid = uid
        self._tables = tables
        self._allow_dropped = allow_dropped
        self.seen: set[int] = set()
        """Groups in which the checkpoint has state."""
        self.dropped = False
        """True if state was left behind."""
        self.classes: dict[str, Shapes] = {}
        """Table -> the classes of its values in the checkpoint, as they were at that time."""
        self.renewed: set[str] = set()
        """Tables with values whose classes have changed since."""
        self.restamped: set[str] = set()
        """Tables with entries whose last writes have no time on the clock of the table."""
        self.rewrites = False
        """True if entries have other times, or none, than in the checkpoint."""
        self.expiries: dict[str, list[ExpiryOf]] = {}
        """Table -> the lifetimes of its entries in the checkpoint."""
        self._decoders: dict[TableInfo, Decode | None] = {}
        self._times = SharedTimes()

    def apply(self, table: TableInfo, group: int, data: bytes | memoryview) -> None:
        """Applies the entries of a block, while restoring, oldest block first."""
        mine = self._declaration(table)
        self.seen.add(group)
        decode = None if mine is None else self._decoder(table, mine)
        if mine is None or decode is None:
            self.dropped = True
            return
        if table.kind == "timers" and not table.times_up:
            raise IncompatibleState(f"{self._who}: its timers in the checkpoint: {UNRELEASED}")
        try:
            found = unpack(data)
            # Values that must stay as they were stored are not encoded anew. Encoding others notes their current classes.
            same = table.encoding == mine.codec.name and (mine.exact is not None or not table.classes)
            if table.stamps != mine.info.stamps or self._lacks_times(table, group, found):
                found, decode, same = self._restamp(table, mine, group, found, decode), _as_it_is, False
            self._load(mine, group, found, decode, same and mine.name not in self.renewed)
        except ChangedKeyClass as error:
            raise self._change_error(table, str(error)) from error
        except ChangedClass as error:
            raise self._other_class(table, error) from error
        except TailraceError:
            raise
        except Exception as error:
            raise IncompatibleState(
                f"{self._who}: state {table.name!r} in the checkpoint ({table.type or 'of no declared type'}, "
                f"{table.encoding}) cannot be read as {type_name(mine.type)}: {error_text(error)}; declare the "
                f"type that it had, or give the new state another name"
            ) from error

    def _decoder(self, table: TableInfo, mine: StateTable) -> Decode | None:
        """The function that decodes values of the checkpoint; None if they are left behind."""
        if table not in self._decoders:
            try:
                plain = decoder(plain_encoding(table.encoding), mine.kind, mine.type, mine.name, table.classes)
                self._decoders[table] = stamped_decoder(mine.kind, plain) if is_stamped(table.encoding) else plain
                if self._changes(table, mine, plain):
                    self.renewed.add(mine.name)
                elif mine.exact is not None:
                    mine.codec.notes.add(table.classes)
                self.classes[mine.name] = merge(self.classes.get(mine.name, ()), table.classes)
            except ChangedClass as error:
                if not self._allow_dropped:
                    raise self._other_class(table, error) from error
                self._decoders[table] = None
        return self._decoders[table]

    @staticmethod
    def _changes(table: TableInfo, mine: StateTable, decode: Decode | None) -> bool:
        """True if the classes of values have changed, so that their stored bytes differ from what would be encoded now. If
        bytes of msgspec were kept, a later version of the class could fill their missing fields with other defaults."""
        if plain_encoding(table.encoding) == "pickle":
            return decode is not pickle.loads
        return not set(table.classes) <= set(mine.codec.notes.listed)

    def _restamp(self, table: TableInfo, mine: StateTable, group: int, found: Entries, decode: Decode) -> Entries:
        """The entries of a block in the form of the table: with times on its clock, or without. What was over at the cut is
        left behind. An entry whose time is not on the clock of the table counts as written without one."""
        self.rewrites = True
        kind, singles = mine.kind, list(map(decode, found.singles))
        entries = [*zip(found.keys, found.values, strict=True), *zip(found.single_keys, singles, strict=True)]
        deleted = list(found.deleted)
        expiry = self._expiry(table, group)
        if expiry is not None:
            entries = [(key, living(kind, held, expiry.lives_in(group))) for key, held in entries]
            deleted += [key for key, held in entries if held is None]
            entries = [(key, held) for key, held in entries if held is not None]
        if table.stamps == mine.info.stamps:
            assert expiry is not None
            entries = [(key, with_times(kind, held, expiry.since)) for key, held in entries]
        else:
            if table.stamps:
                entries = [(key, unwrap(kind, held)) for key, held in entries]
            if mine.info.stamps:
                self.restamped.add(mine.name)
                entries = [(key, wrap(kind, value, UNSTAMPED)) for key, value in entries]
        return Entries([], [], [key for key, _ in entries], [value for _, value in entries], deleted)

    def _lacks_times(self, table: TableInfo, group: int, found: Entries) -> bool:
        """True if some entries of a block have no time, and the checkpoint has the one that counts as theirs."""
        expiry = self._expiry(table, group)
        if expiry is None or expiry.since == UNSTAMPED:
            return False
        return any(UNSTAMPED in stamps_in(table.kind, one) for one in found.singles)

    def _expiry(self, table: TableInfo, group: int) -> Expiry | None:
        """The lifetimes of the entries of a block at the cut; None if they have none, or it is not known."""
        for groups, expiry in self.expiries.get(table.name, ()) if table.stamps else ():
            if groups[0] <= group < groups[1] and expiry.stamps == table.stamps:
                return expiry
        return None

    def _other_class(self, table: TableInfo, error: ChangedClass) -> IncompatibleState:
        return IncompatibleState(f"{self._who}: {other_class(table.name, error, self._uid)}")

    def _change_error(self, table: TableInfo, what: str) -> IncompatibleState:
        return IncompatibleState(
            f"{self._who}: the keys of state {table.name!r} in the checkpoint cannot be "
            f"read: {what}; keys are known by the names of their class and its fields, or of the Enum's member: use the old "
            f"class for the key again, or give the operator another uid to begin without its state"
        )

    @property
    def _who(self) -> str:
        return f"operator {self._encoder.operator!r} (uid {self._uid!r})"

    def _declaration(self, table: TableInfo) -> StateTable | None:
        mine = self._tables.get(table.name)
        if mine is not None and mine.kind == table.kind:
            if takes(table.type, plain_encoding(table.encoding), table.classes, mine.type):
                return mine
        if self._allow_dropped:
            return None
        who = self._who
        if mine is None:
            declared = ", ".join(repr(name) for name in self._tables) or "no state"
            raise IncompatibleState(
                f"{who}: the checkpoint holds state {table.name!r} of kind {table.kind!r}, which is not declared any more; "
                f"declared are {declared}; declare it, or start with allow_dropped_state to leave it behind"
            )
        if mine.kind == table.kind:
            raise IncompatibleState(f"{who}: {other_type(table.name, table.type, type_name(mine.type), self._uid)}")
        raise IncompatibleState(
            f"{who}: state {table.name!r} is of kind {table.kind!r} in the checkpoint and declared as {mine.kind!r}; give "
            f"the new state another name, or start with allow_dropped_state to leave the old one behind"
        )

    def _load(self, table: StateTable, group: int, found: Entries, decode: Callable[[Any], Any], same: bool) -> None:
        """Loads entries into the base. `same`: encoded values are as the table would encode them."""
        base = table.base
        for key in found.deleted:
            base.remove(plain_key(key), group)
        base.commit()
        objects = isinstance(base, MemoryBase) and table.exact is None
        times = self._times if base.mutable and table.info.stamps else None
        if times is not None:
            for value in found.values:
                times.share(table.kind, value)
        if isinstance(base, MemoryBase) and (objects or comes_back(found.values)):
            table.layered = True
            base.put_all(map(plain_key, found.keys), found.values, group)
        else:
            for key, value in zip(found.keys, found.values, strict=True):
                bare = base.mutable and comes_back(value)
                table.load(key, value, group, None if bare else self._encoder.value(table, key, value))
        singles = list(map(decode, found.singles))
        if times is not None:
            for value in singles:
                times.share(table.kind, value)
        if isinstance(base, MemoryBase) and objects:
            table.layered = True
            base.put_all(map(plain_key, found.single_keys), singles, group)
        else:
            for key, value, single in zip(found.single_keys, singles, found.singles, strict=True):
                data = bytes(single) if same else self._encoder.value(table, key, value)
                table.load(key, value, group, data)
        base.commit()
