"""One state of one operator, in three layers.

`top` holds the entries that were written since the last freeze. It is exactly a `dict`, because hot loops read and write
it directly. `frozen` is the layer of the last freeze on its way into the base. The base is a store below (a dictionary,
or a database on disk). A newer layer is higher and hides the layers below.

Invariant B1: an entry of the state is found in the first of top, `deleted`, frozen, frozen's `deleted`, base that knows
its key. While nothing was ever frozen or restored, top is everything.
Invariant B5: the columns that an operator keeps of the table (`front`) hide everything below them. A frozen layer has
columns only while there is a front that has each of their keys: no reader looks below the front for one of them.
Invariant B2: an object that can be changed in place is handed out from `top` only. An object that is found below is moved
up first, and counts as written; if the checkpoint that is being encoded still needs it, it is encoded before that.
Invariant B8: where another worker may go on from a checkpoint (`exact`), a value that does not come back from its bytes
as it is (`state.pickle_roundtrip`) is handed out behind a cut as its bytes give it: once for each cut behind which it is
used, whether it was encoded or not. So a base holds such a value as bytes, and writes the same bytes every time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Protocol

from tailrace.elements.keygroups import KeyGroups
from tailrace.elements.plainkeys import plain_key
from tailrace.state.codecs import Codec, immutable
from tailrace.state.format import TableInfo
from tailrace.state.pickle_roundtrip import comes_back

MISSING: Any = object()
_SAMPLE = 1_000
ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes})
"""Types whose values cannot be changed in place."""
REPLACED = ATOMS | {tuple}
"""Types of values that cannot be changed in place, in tables whose tuples hold nothing that is changed in place."""
Entry = tuple[Any, Any, bytes | None]
"""A key with its value as an object, or as bytes if the bytes are not None."""
Portion = tuple[list[Any], list[Any] | None, list[bytes]]
"""Some keys with their values as objects, or as bytes if there are no objects."""
Keys = dict[Any, None]
"""Distinct keys, in the order in which they came. Files have keys in this order; the order of a `set` of texts differs
between processes."""


class FrozenColumns(Protocol):
    """Entries of a frozen layer that are still in columns."""

    def take(self, limit: int) -> dict[Any, Any]:
        """Takes the next entries; empty when there are no more."""

    def drop(self, limit: int) -> list[Any]:
        """Takes the next keys that were deleted; empty when there are no more."""

    @property
    def drops(self) -> int:
        """Number of deleted keys that are left."""

    def __len__(self) -> int:
        """Number of entries and deleted keys that are left."""


class Front(Protocol):
    """Columns that an operator keeps for a table, above `top`."""

    def entries(self) -> int:
        """Number of entries of the table."""

    def about(self) -> int:
        """Approximate number of entries of the table, without looking at each."""

    def everything(self) -> dict[Any, Any] | None:
        """All entries of the table, if the columns hold all of them; else None. Reading them changes nothing."""

    def cut(self) -> FrozenColumns | None:
        """The entries that were written since the last cut, as they are now."""

    def take_back(self, columns: FrozenColumns, taken: int) -> None:
        """Counts as written again what is left of such columns, the last `taken` entries that were taken from them, and all
        deleted keys: deleting a key twice does no harm."""

    def take_written(self) -> tuple[dict[Any, Any], list[Any]]:
        """Takes the entries that were written since the last cut, and the keys that were deleted. They do not count as
        written any more."""


class Layer:
    """The entries that were written, and the keys that were deleted, between two freezes."""

    __slots__ = ("columns", "deleted", "entries")

    def __init__(self, entries: dict[Any, Any], deleted: Keys, columns: FrozenColumns | None = None) -> None:
        self.entries = entries
        self.deleted = deleted
        self.columns = columns
        """Entries that are still in columns. `unpack` moves them into `entries` a portion at a time. While there are
        columns, the layer has no entries of other origin."""

    def __bool__(self) -> bool:
        return bool(self.entries or self.deleted or self.columns)

    def __len__(self) -> int:
        return len(self.entries) + len(self.deleted) + (0 if self.columns is None else len(self.columns))

    @property
    def deletions(self) -> int:
        """Number of deleted keys in the layer."""
        return len(self.deleted) + (0 if self.columns is None else self.columns.drops)

    def unpack(self, limit: int) -> None:
        """Makes entries of the next columns, up to `limit`."""
        if self.columns is not None:
            self.entries.update(self.columns.take(limit))
            self.deleted.update(dict.fromkeys(self.columns.drop(limit)))
            if not self.columns and not self.entries and not self.deleted:
                self.columns = None

    def cover(self, newer: Layer) -> None:
        """Merges a newer layer into this one."""
        if self.deleted:
            for key in newer.entries:
                self.deleted.pop(key, None)
        self.entries.update(newer.entries)
        for key in newer.deleted:
            if key not in newer.entries:
                self.entries.pop(key, None)
                self.deleted[key] = None


class ReadsTop(Protocol):
    """A handle that reads the top of a table directly."""

    _top: dict[Any, Any]


class Base(Protocol):
    """The lowest layer of a table."""

    alive: dict[int, int]
    """Key group -> number of its entries; groups without any are absent."""
    mutable: bool
    """True if the base holds the objects themselves, so that a change of an object in place changes it here as well."""

    @property
    def count(self) -> int:
        """Number of entries."""

    def get(self, key: Any, default: Any, /) -> Any:
        """The value of a key."""

    def put(self, key: Any, value: Any, group: int, data: bytes | None = None) -> bytes | None:
        """Writes an entry. Returns its value as bytes if the base holds bytes. `data` is the encoded value, if known."""

    def remove(self, key: Any, group: int) -> None:
        """Removes a key."""

    def commit(self) -> None:
        """Ends a portion of writing, and makes it visible."""

    def cut(self) -> None:
        """Makes a cut: until the next cut or `uncut`, `entry_at_cut` and `group` return the base as it is now."""

    def uncut(self) -> None:
        """Drops the last cut."""

    def entry_at_cut(self, key: Any, group: int) -> Entry | None:
        """One entry, as at the cut; None if there is none."""

    def group(self, group: int, portion: int) -> Iterator[Portion]:
        """The entries of a key group, as at the cut, `portion` entries at a time."""

    def scan(self, group: int, portion: int) -> Iterator[Portion]:
        """The entries of a key group, `portion` entries at a time. Entries that are written meanwhile may be missing or as
        they were before."""

    def keys(self) -> Iterator[Any]:
        """All keys. The caller must write nothing meanwhile."""

    def items(self) -> Iterator[tuple[Any, Any]]:
        """All entries. The caller must write nothing meanwhile."""


class StateTable:
    """A mapping from `plain_key`s to the values of one state.

    A handle that reads `top` directly calls `find` for a key that is missing there. It appends itself to `users`: at each
    freeze the `_top` of each user becomes the new top.
    """

    __slots__ = (
        "base", "codec", "deleted", "exact", "front", "frozen", "group_by", "hurry", "index", "info", "kind", "layered",
        "name", "replaced", "spilled", "top", "type", "users",
    )  # fmt: skip

    def __init__(
        self, index: int, info: TableInfo, type_: Any, codec: Codec, base: Base, group_by: Callable[[Any], Any] | None
    ) -> None:
        self.index = index
        self.info = info
        self.name = info.name
        self.kind = info.kind
        self.type = type_
        self.codec = codec
        self.base = base
        self.group_by = group_by
        self.top: dict[Any, Any] = {}
        self.deleted: Keys = {}
        """Keys that were deleted since the last freeze and may be in a layer below. A deleted key that is in `top` was
        written again."""
        self.frozen: Layer | None = None
        self.spilled: Keys = {}
        """Keys that were written since the last freeze and have already gone into the base."""
        self.layered = False
        """True if there is, or was, any entry below `top`."""
        self.replaced = False
        """True if its tuples are replaced as a whole and never changed; set by the operator that declares the table."""
        self.hurry: Callable[[StateTable, Any, Any], None] | None = None
        """A function that encodes an object that is about to be handed out, set while a checkpoint is encoded."""
        self.exact: Callable[[StateTable, Any, Any], Any] | None = None
        """A function that returns a value of the frozen layer as its bytes give it, set if another worker may go on from a
        checkpoint."""
        self.users: list[ReadsTop] = []
        self.front: Front | None = None
        """Columns that an operator keeps for the table. While they are there, only they are written, and `get` finds what is
        below them."""

    # For handles and operators.

    def find(self, key: Any, default: Any = None) -> Any:
        """The value of a key that is not in `top`."""
        if not self.layered or key in self.deleted:
            return default
        found = MISSING
        frozen = self.frozen
        if frozen is not None:
            found = frozen.entries.get(key, MISSING)
            if found is MISSING and key in frozen.deleted:
                return default
        was_frozen = found is not MISSING
        if found is MISSING:
            found = self.base.get(key, MISSING)
            if found is MISSING:
                return default
        if self.exact is not None and not comes_back(found):
            found = self.top[key] = self.exact(self, key, found) if was_frozen else found
        elif not immutable(found):
            if self.hurry is not None:
                self.hurry(self, key, found)
            self.top[key] = found
        return found

    def __getitem__(self, key: Any, /) -> Any:
        found = self.get(key, MISSING)
        if found is MISSING:
            raise KeyError(key)
        return found

    def get(self, key: Any, default: Any = None, /) -> Any:
        """The value of a key."""
        found = self.top.get(key, MISSING)
        return found if found is not MISSING else self.find(key, default)

    def pop(self, key: Any, default: Any = None, /) -> Any:
        """Removes a key, and returns the value it had."""
        if not self.layered:
            return self.top.pop(key, default)
        found = self.get(key, MISSING)
        if found is MISSING:
            return default
        self.top.pop(key, None)
        if self._is_below(key):
            self.deleted[key] = None
        return found

    def peek(self, key: Any, default: Any = None) -> Any:
        """The value of a key, for reading. It stays in its layer."""
        found = self.top.get(key, MISSING)
        if found is not MISSING:
            return found
        if not self.layered or key in self.deleted:
            return default
        if self.frozen is not None:
            found = self.frozen.entries.get(key, MISSING)
            if found is not MISSING or key in self.frozen.deleted:
                return default if found is MISSING else found
        return self.base.get(key, default)

    def drop(self, key: Any) -> None:
        """Removes a key, without a look at its value."""
        self.top.pop(key, None)
        if self.layered and self._is_below(key):
            self.deleted[key] = None

    def _is_below(self, key: Any) -> bool:
        if key in self.deleted:
            return False  # it is noted already
        frozen = self.frozen
        if frozen is not None:
            if key in frozen.entries:
                return True
            if key in frozen.deleted:
                return False
        return self.base.get(key, MISSING) is not MISSING

    def __setitem__(self, key: Any, value: Any, /) -> None:
        self.top[key] = value

    def __contains__(self, key: object, /) -> bool:
        return key in self.top or (self.layered and key not in self.deleted and self._is_below(key))

    def items(self) -> Iterator[tuple[Any, Any]]:
        """All entries, for reading. The caller must write nothing meanwhile, and change no value in place."""
        found = None if self.front is None else self.front.everything()
        if found is not None:
            yield from found.items()
            return
        self.settle()
        top, deleted, frozen = self.top, self.deleted, self.frozen
        yield from top.items()
        if not self.layered:
            return
        above = Layer({}, {}) if frozen is None else frozen
        for key, value in above.entries.items():
            if key not in top and key not in deleted:
                yield key, value if self.exact is None or comes_back(value) else self.exact(self, key, value)
        for key, value in self.base.items():
            if not self._hides(key, above):
                yield key, value

    def keys(self) -> Iterator[Any]:
        """All keys. The caller must write nothing meanwhile."""
        return (key for key, _ in self.items())

    __iter__ = keys

    def _hides(self, key: Any, frozen: Layer) -> bool:
        return key in self.top or key in self.deleted or key in frozen.entries or key in frozen.deleted

    def __len__(self) -> int:
        return self.behind() if self.front is None else self.front.entries()

    def behind(self) -> int:
        """Number of entries, without entries that are only in columns."""
        if not self.layered:
            return len(self.top)
        return self.base.count + self._more(self.top, self.deleted, self.frozen)

    def about(self) -> int:
        """Approximate number of entries, without a look at each."""
        return self.about_behind() if self.front is None else self.front.about()

    def about_behind(self) -> int:
        """An estimate of the number that `behind` returns."""
        layers = [self.top] if self.frozen is None else [self.top, self.frozen.entries]
        if not self.layered or sum(map(len, layers)) <= _SAMPLE:
            return self.behind()
        about = self.base.count - len(self.deleted)
        for layer in layers:
            newest = dict.fromkeys(islice(reversed(layer), _SAMPLE))
            about += self._more(newest, {}, None) * len(layer) // max(len(newest), 1)
        return max(about, 0)

    def certainly_empty(self) -> bool:
        """True if the table has no entries, as far as that is known without a look at many entries."""
        layers = [] if self.frozen is None else [self.frozen]
        if self.top or any(layer.columns is not None for layer in layers):
            return False
        looked_at = len(self.deleted) + sum(map(len, layers))
        return self.front is None and looked_at <= _SAMPLE and not self.behind()

    def settle(self) -> None:
        """Makes entries of everything that is in columns. After that the front counts as having written nothing."""
        if self.frozen is not None and self.frozen.columns is not None:
            while self.frozen.columns:  # one call may leave some
                self.frozen.unpack(len(self.frozen.columns))
            self.frozen.columns = None
        if self.front is not None:
            entries, deleted = self.front.take_written()
            self.top.update(entries)
            for key in deleted:
                self.pop(key)

    def _more(self, top: dict[Any, Any], deleted: Keys, frozen: Layer | None) -> int:
        """Number of entries with these layers, minus the number in the base."""
        get, more = self.base.get, 0
        if frozen is None or not frozen:
            more = sum(get(key, MISSING) is MISSING for key in top) if self.base.count else len(top)
            return more - sum(key not in top and get(key, MISSING) is not MISSING for key in deleted)
        for key in {*top, *deleted, *frozen.entries, *frozen.deleted}:
            there = key in top or (key not in deleted and key in frozen.entries)
            more += there - (get(key, MISSING) is not MISSING)
        return more

    # For the backend.

    def group_of(self, groups: KeyGroups, key: Any) -> int:
        """The key group of a key."""
        return groups.group_of(key if self.group_by is None else self.group_by(key))

    def freeze(self, small: int = 0) -> Keys:
        """Freezes the entries written since the last freeze, and returns the keys among them that had already gone into the
        base. A table of up to `small` entries counts as small."""
        if self.front is not None and self._freeze_front(self.front):
            return {}
        written = Layer(self.top, self.deleted)
        spilled, self.spilled = self.spilled, {}
        if written:
            self.layered = True
            if self.frozen is None:
                self.frozen = written
            else:
                self.frozen.cover(written)  # it holds entries that an aborted checkpoint has left
            self._renew(self._next_top(written.entries, small))
        return spilled

    def _freeze_front(self, front: Front) -> bool:
        """Freezes the columns of the front, as columns. Returns False if the table also has entries that are not in columns:
        then the columns have become entries as well."""
        frozen = self.frozen
        if frozen is not None and frozen.columns is not None:
            front.take_back(frozen.columns, len(frozen.entries))  # left by an aborted checkpoint
            self.frozen = frozen = None
        if frozen or self.top or self.deleted:
            self.settle()
            return False
        columns = front.cut()
        if columns is not None:
            self.layered = True
            self.frozen = Layer({}, {}, columns)
        return True

    def _next_top(self, entries: dict[Any, Any], small: int) -> dict[Any, Any]:
        """The next top. Every checkpoint writes a small table as a whole, so frozen entries may stay on top as well, as if
        they had been written again: reads find them there at once. Objects that can be changed in place do not stay."""
        if len(entries) > small or self.base.count > small or self.front is not None:
            return {}
        kinds = set(map(type, entries.values()))
        if not kinds <= (REPLACED if self.replaced else ATOMS):
            return {}
        return dict(entries) if self.exact is None or comes_back(list(entries.values())) else {}

    def _renew(self, top: dict[Any, Any]) -> None:
        self.top, self.deleted = top, {}
        for user in self.users:
            user._top = top

    def drop_frozen(self) -> None:
        """Drops the frozen layer, which has gone into the base."""
        self.frozen = None

    def clear(self) -> None:
        """Deletes every entry."""
        for key in list(self.keys()) if self.layered else ():
            self.pop(key)
        self.top.clear()

    def load(self, key: Any, value: Any, group: int, data: bytes | None) -> None:
        """Writes an entry into the base, while restoring."""
        self.layered = True
        self.base.put(plain_key(key), value, group, data)
