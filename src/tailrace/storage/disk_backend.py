"""State on local disk: the backend for state that is larger than memory.

The tables are layered as in memory. The lowest layer is a RocksDB in a scratch folder, which lives no longer than the
backend. Checkpoints make state durable, and have one format for both backends. So nothing here is ever synced, and there
is no write-ahead log.

An entry: the key group (u16), the table (u16), the canonical bytes of the key -> the length of the pickled key (u32), the
pickled key, the encoded value. A key that is read from its canonical bytes (`DescribedKeys`) is not pickled, and its
length is 0. Equal keys have equal canonical bytes. (Unlike in memory, two unequal wall-clock times also have equal
canonical bytes, if one of them does not exist because the clocks were put forward past it.)
"""

from __future__ import annotations

import pickle
import shutil
import struct
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from tailrace.elements.keys import PLAINLY_DESCRIBED, DescribedKeys
from tailrace.elements.plainkeys import plain_key
from tailrace.errors import ConfigError
from tailrace.state.codecs import Codec, immutable, pickled_key
from tailrace.state.layers import Generation, LayeredBackend
from tailrace.state.pickle_roundtrip import comes_back
from tailrace.state.tables import MISSING, Base, Entry, Portion, StateTable

TOP_ENTRIES = 100_000
"""Largest number of entries of a table that are kept as Python objects between two checkpoints."""
TOP_BYTES = 64 << 20
"""Largest size of these entries in bytes, as they would be encoded (estimated from samples)."""
CACHE_ENTRIES = 50_000
"""Largest number of values of a table that were read and not written, kept as Python objects."""
BLOCK_SIZE = 8 << 10
"""Size in bytes of a block of the database before it is compressed. With twice the size a checkpoint reads cheaper, and a
single key costs more."""
BLOCK_CACHE = 4 << 20
"""Bytes of blocks that the database keeps unpacked, for each backend. A larger cache made reads of single keys slower: the
layers above hold recently used entries as Python objects."""
THERE = object()
_ROOM = 8
"""Fraction of a top layer that is kept free for new keys: one part in this many."""
_GENTLY = 256
"""Number of entries that are moved at once to keep that room. Moving fewer would cost more: a dictionary searches for its
oldest entry through the places of the ones that were removed."""
_PREFIX = struct.Struct(">HH")
_LENGTH = struct.Struct("<I")
_DESCRIBED = _LENGTH.pack(0)
_SAMPLED = 8
_PORTION = 32


def rocksdict() -> Any:
    """The module `rocksdict`. Raises `ConfigError` where it is not installed."""
    try:
        import rocksdict as module
    except ImportError as error:
        raise ConfigError(
            f'state on disk needs the package rocksdict ({error}); install it on every machine: pip install "tailrace[disk]"'
        ) from error
    return module


class DiskBase:
    """A table in the database of its backend."""

    mutable = False

    def __init__(
        self,
        db: Any,
        passing: Any,
        index: int,
        codec: Codec,
        group_of: Callable[[Any], int],
        canonical_of: Callable[[Any], bytes],
        cache_entries: int,
        absent_entries: int,
    ) -> None:
        self._db = db
        self._passing = passing
        """Read options for blocks that are not read again soon: they do not fill the cache."""
        self._index = index
        self._codec = codec
        self._group_of = group_of
        self._canonical_of = canonical_of
        self._cache_entries = cache_entries
        self.cache: dict[Any, Any] = {}
        """Key -> its value in the database, for values that cannot be changed in place. For other values that were read:
        `THERE`, which saves a read when the key is written. `THERE` is noted only for keys whose place no unequal key
        shares."""
        self._absent: dict[Any, bytes] = {}
        """Keys that were read and are not in the database -> their places. Most of them are in the layers above by now, and
        are written next."""
        self._absent_entries = absent_entries
        self._described = DescribedKeys()
        self.alive: dict[int, int] = {}
        self.count = 0
        self._batch: Any = None
        self._cut: Any = None

    def _place(self, key: Any, group: int) -> bytes:
        return _PREFIX.pack(group, self._index) + self._canonical_of(key)

    def get(self, key: Any, default: Any, /) -> Any:
        if self.cache:  # many new keys at once: their hash may be a function in Python
            found = self.cache.get(key, MISSING)
            if found is not MISSING and found is not THERE:
                return found
        if key in self._absent:
            return default
        place = self._place(key, self._group_of(key))
        stored = self._db.get(place)
        if stored is None:
            if key in self._described:
                if len(self._absent) >= self._absent_entries:
                    self._absent.clear()
                self._absent[key] = place
            return default
        found = self._codec.decode(stored[4 + _LENGTH.unpack_from(stored)[0] :])
        if immutable(found):
            self._learn(key, found)
        elif key in self._described:
            self._learn(key, THERE)
        return found

    def _learn(self, key: Any, what: Any) -> None:
        if len(self.cache) >= self._cache_entries:
            self.cache.clear()  # cheap per key, and keys in use come back at once
        self.cache[key] = what

    def forget(self) -> None:
        """Drops what is cached of earlier reads."""
        self.cache.clear()
        self._absent.clear()

    def _is_new(self, key: Any, place: bytes) -> bool:
        """True if a key that was not noted as absent is not in the database. Drops what is cached of its value, because the
        caller is going to write it."""
        return self.cache.pop(key, MISSING) is MISSING and self._db.get(place) is None

    def put(self, key: Any, value: Any, group: int, data: bytes | None = None) -> bytes | None:
        if data is None:
            data = self._codec.encode(value)
        place = self._absent.pop(key, None)
        known_absent = place is not None
        if place is None:
            place = self._place(key, group)
        if known_absent or self._is_new(key, place):
            self.count += 1
            self.alive[group] = self.alive.get(group, 0) + 1
        if self._batch is None:
            self._batch = rocksdict().WriteBatch(raw_mode=True)
        if type(key) in PLAINLY_DESCRIBED or key in self._described:
            self._batch.put(place, _DESCRIBED + data)
        else:
            named = pickled_key(key)
            self._batch.put(place, b"".join((_LENGTH.pack(len(named)), named, data)))
        return data

    def remove(self, key: Any, group: int) -> None:
        if self._absent.pop(key, None) is not None:
            return
        place = self._place(key, group)
        if self._is_new(key, place):
            return
        self.count -= 1
        self.alive[group] -= 1
        if not self.alive[group]:
            del self.alive[group]
        if self._batch is None:
            self._batch = rocksdict().WriteBatch(raw_mode=True)
        self._batch.delete(place)

    def commit(self) -> None:
        if self._batch is not None:
            self._db.write(self._batch)
            self._batch = None

    def cut(self) -> None:
        self._cut = self._walker()  # shows the database as it is now (the iterators of a Snapshot do not)

    def _walker(self) -> Any:
        return self._db.iter(self._passing)

    def uncut(self) -> None:
        self._cut = None

    def entry_at_cut(self, key: Any, group: int) -> Entry | None:
        place = self._place(key, group)
        self._cut.seek(place)
        if self._cut.key() != place:
            self._cut.status()
            return None
        found, data = self._entry(place, self._cut.value())
        return found, None, data

    def group(self, group: int, portion: int) -> Iterator[Portion]:
        return self._walk(self._cut, group, portion)

    def scan(self, group: int, portion: int) -> Iterator[Portion]:
        return self._walk(self._walker(), group, portion)

    def _walk(self, at: Any, group: int, portion: int) -> Iterator[Portion]:
        prefix = _PREFIX.pack(group, self._index)
        at.seek(prefix)
        place_at, value_at, move, entry = at.key, at.value, at.next, self._entry
        place = place_at()
        while place is not None and place.startswith(prefix):
            keys: list[Any] = []
            encoded: list[bytes] = []
            for _ in range(portion):
                key, data = entry(place, value_at())
                keys.append(key)
                encoded.append(data)
                move()
                place = place_at()
                if place is None or not place.startswith(prefix):
                    break
            yield keys, None, encoded
        at.status()  # raises if the walk ended because of an error

    def _entry(self, place: bytes, stored: bytes) -> tuple[Any, bytes]:
        """The key and the encoded value of a record of the database."""
        if stored.startswith(_DESCRIBED):
            return self._described.read(place, _PREFIX.size), stored[4:]
        end = 4 + _LENGTH.unpack_from(stored)[0]
        return plain_key(pickle.loads(stored[4:end])), stored[end:]

    def keys(self) -> Iterator[Any]:
        return (key for keys, _ in self._portions() for key in keys)

    def items(self) -> Iterator[tuple[Any, Any]]:
        decode = self._codec.decode
        return (
            (key, decode(data)) for keys, encoded in self._portions() for key, data in zip(keys, encoded, strict=True)
        )

    def _portions(self) -> Iterator[tuple[list[Any], list[bytes]]]:
        at = self._walker()
        return ((keys, encoded) for group in sorted(self.alive) for keys, _, encoded in self._walk(at, group, _PORTION))


class DiskBackend(LayeredBackend):
    """State in a RocksDB of its own in `folder`, which must be new; `close` deletes it. Entries written since the last
    checkpoint are in memory first, up to `top_entries` per table. The oldest beyond that go to disk."""

    def __init__(
        self,
        folder: str | Path,
        max_parallelism: int = 128,
        uid: str = "",
        subtask: int = 0,
        allow_dropped: bool | Collection[str] = False,
        *,
        operator: str = "",
        top_entries: int = TOP_ENTRIES,
        top_bytes: int = TOP_BYTES,
        cache_entries: int = CACHE_ENTRIES,
        small: int | None = None,
    ) -> None:
        super().__init__(max_parallelism, uid, subtask, allow_dropped, operator=operator, small=small)
        self.folder = Path(folder)
        self.top_entries = top_entries
        self.top_bytes = top_bytes
        self.cache_entries = cache_entries
        self._limits: dict[str, tuple[int, int]] = {}
        """Table -> (entries of its top layer at the last look, largest number of entries it may have)."""
        self._left: int | None = None
        """Number of entries at the time the backend was closed; None while it is open."""
        module = rocksdict()
        self.folder.mkdir(parents=True, exist_ok=True)
        options = module.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_max_background_jobs(2)
        blocks = module.BlockBasedOptions()
        blocks.set_bloom_filter(10, False)
        blocks.set_block_size(BLOCK_SIZE)
        blocks.set_block_cache(module.Cache(BLOCK_CACHE))
        options.set_block_based_table_factory(blocks)
        self._db = module.Rdict(str(self.folder), options)
        writing = module.WriteOptions()
        writing.disable_wal = True
        self._db.set_write_options(writing)
        self._passing = module.ReadOptions()
        self._passing.fill_cache(False)

    def make_base(self, index: int, codec: Codec, group_of: Callable[[Any], int]) -> Base:
        """A table in the database, as the lowest layer of a state."""
        absent = self.top_entries + self.top_entries // 2
        canonical_of = self._groups.canonical_of
        return DiskBase(self._db, self._passing, index, codec, group_of, canonical_of, self.cache_entries, absent)

    def relieve(self) -> None:
        """Moves the surplus of the top layers to disk. When many new keys come at once, it moves only as many entries as
        there is no room for. Later calls make room for further keys bit by bit."""
        if self._draining:
            return
        for table in self.tables.values():
            if isinstance(table.base, DiskBase) and (table.top or table.deleted or table.frozen is not None):
                self._relieve(table, table.base)

    def _relieve(self, table: StateTable, base: DiskBase) -> None:
        limit = self._limit(table)
        over = len(table.top) - limit
        if over < _GENTLY <= over + limit // _ROOM:
            over = _GENTLY
        deleted = len(table.deleted) - self.top_entries
        if over <= 0 and deleted <= 0:
            return
        if table.frozen is not None:  # left by an aborted checkpoint; it lies below the top layer, and is written first
            for _ in self._drain(table, self._last().changed[table.index][0], None):
                pass
        top, spilled = table.top, table.spilled
        for key in list(islice(table.deleted, max(deleted, 0))):
            table.deleted.pop(key, None)
            if key not in top:
                base.remove(key, self._group_of(table, key))
                spilled[key] = None
        base.commit()
        for key in list(islice(top, max(over, 0))):
            value = top[key]
            if self.on_inexact is not None and not comes_back(value):
                self.on_inexact()  # the value will be read back as its bytes give it, without a cut in between
            base.put(key, value, self._group_of(table, key), self._encoder.value(table, key, value))
            del top[key]
            table.deleted.pop(key, None)
            spilled[key] = None
        base.commit()
        table.layered = True

    def _limit(self, table: StateTable) -> int:
        """Largest number of entries that the top layer may have. Samples some entries again whenever their number has
        doubled."""
        entries = len(table.top)
        looked, limit = self._limits.get(table.name, (0, self.top_entries))
        if entries < 2 * looked or entries < _SAMPLED:
            return limit
        sample = list(islice(reversed(table.top.items()), _SAMPLED))
        mean = sum(len(self._encoder.value(table, key, value)) for key, value in sample) // len(sample) + 1
        limit = max(1, min(self.top_entries, self.top_bytes // mean))
        self._limits[table.name] = (entries, limit)
        return limit

    def _last(self) -> Generation:
        """The generation that notes keys that are not in any confirmed checkpoint."""
        if not self.generations:
            made = Generation(0, len(self.tables))
            made.aborted = True
            self.generations.append(made)
        return self.generations[-1]

    def entries(self) -> int:
        """Number of entries; once the backend is closed, the number at that time."""
        return super().entries() if self._left is None else self._left

    def close(self) -> None:
        """Closes the database and deletes its folder."""
        if self._db is None:
            return
        self._left = 0
        with suppress(Exception):  # after a failure there may be a value that cannot be read
            self._left = super().entries()
        self._end()
        for table in self.tables.values():
            if isinstance(table.base, DiskBase):
                table.base.forget()
                table.base._db = None
        self._db.close()
        self._db = None
        shutil.rmtree(self.folder, ignore_errors=True)
