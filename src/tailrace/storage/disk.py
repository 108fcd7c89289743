"""State on local disk: the backend for state that is larger than memory.

The tables are layered as in memory; the lowest layer is a RocksDB in a scratch folder, which lives no longer than the
backend: checkpoints make state durable, and have one format for both backends. So nothing here is ever synced, and
there is no write-ahead log.

An entry: the key group (u16), the table (u16), the canonical bytes of the key -> the length of the pickled key (u32), the
pickled key, the encoded value. A key that is read from its canonical bytes (`DescribedKeys`) is not pickled, and its
length is 0. Equal keys have equal canonical bytes. (So have, unlike in memory, two unequal wall-clock times of which one
does not exist because the clocks were put forward past it.)
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

from tailrace.elements.keys import PLAINLY_DESCRIBED, DescribedKeys, canonical_bytes
from tailrace.elements.plainkeys import plain_key
from tailrace.errors import ConfigError
from tailrace.state.codecs import Codec, immutable, pickled_key
from tailrace.state.comingback import comes_back
from tailrace.state.generations import Generation
from tailrace.state.layers import LayeredBackend
from tailrace.state.tables import MISSING, Base, Entry, Portion, StateTable

TOP_ENTRIES = 100_000
"""Entries of a table that are kept as Python objects between two checkpoints, at most."""
TOP_BYTES = 64 << 20
"""The same in bytes, as they would be encoded (about, from samples)."""
CACHE_ENTRIES = 50_000
"""Values of a table that were read and not written, kept as Python objects."""
BLOCK_SIZE = 8 << 10
"""Bytes of a block of the database before it is compressed. With twice as many a checkpoint reads cheaper, and a single
key costs more."""
BLOCK_CACHE = 4 << 20
"""Bytes of blocks that are kept unpacked, for each backend. A larger one made reads of single keys slower: what was used
last is in the layers above, as Python objects."""
THERE = object()
_ROOM = 8
"""One part in so many of a top layer is to be free for new keys,"""
_GENTLY = 256
"""and so many entries at once make room for that: fewer would cost more, because a dictionary looks for its oldest entry
where others were before."""
_PREFIX = struct.Struct(">HH")
_LENGTH = struct.Struct("<I")
_DESCRIBED = _LENGTH.pack(0)
_SAMPLED = 8
_PORTION = 32


def rocksdict() -> Any:
    """The module. Raises `ConfigError` where it is not installed."""
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
        cache_entries: int,
        absent_entries: int,
    ) -> None:
        self._db = db
        self._passing = passing
        """How to read what will not be read again soon."""
        self._index = index
        self._codec = codec
        self._group_of = group_of
        self._cache_entries = cache_entries
        self.cache: dict[Any, Any] = {}
        """Values that cannot be changed in place, as they are in the database. Of others that were read, that they are
        `THERE`, which saves a read when they are written: where no key but an equal one has the same place."""
        self._absent: set[Any] = set()
        """Keys that were read and are not in the database. Most are in the layers above by now, and are written next."""
        self._absent_entries = absent_entries
        self._described = DescribedKeys()
        self.alive: dict[int, int] = {}
        self.count = 0
        self._batch: Any = None
        self._cut: Any = None

    def _place(self, key: Any, group: int) -> bytes:
        return _PREFIX.pack(group, self._index) + canonical_bytes(key)

    def get(self, key: Any, default: Any, /) -> Any:
        found = self.cache.get(key, MISSING)
        if found is not MISSING and found is not THERE:
            return found
        if key in self._absent:
            return default
        stored = self._db.get(self._place(key, self._group_of(key)))
        if stored is None:
            if key in self._described:
                if len(self._absent) >= self._absent_entries:
                    self._absent.clear()
                self._absent.add(key)
            return default
        found = self._codec.decode(stored[4 + _LENGTH.unpack_from(stored)[0] :])
        if immutable(found):
            self._learn(key, found)
        elif key in self._described:
            self._learn(key, THERE)
        return found

    def _learn(self, key: Any, what: Any) -> None:
        if len(self.cache) >= self._cache_entries:
            self.cache.clear()  # cheap per key, and those in use come back at once
        self.cache[key] = what

    def forget(self) -> None:
        """Forgets what was read."""
        self.cache.clear()
        self._absent.clear()

    def _is_new(self, key: Any, place: bytes) -> bool:
        """Whether the key is not in the database. What is known of its value is forgotten: it is to be written."""
        if key in self._absent:
            self._absent.discard(key)
            return True
        return self.cache.pop(key, MISSING) is MISSING and self._db.get(place) is None

    def put(self, key: Any, value: Any, group: int, data: bytes | None = None) -> bytes | None:
        if data is None:
            data = self._codec.encode(value)
        place = _PREFIX.pack(group, self._index) + canonical_bytes(key)
        if self._is_new(key, place):
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
        self._cut = self._walker()  # it shows the database as it is now (the iterators of a Snapshot do not)

    def _walker(self) -> Any:
        return self._db.iter(self._passing)

    def uncut(self) -> None:
        self._cut = None

    def stored(self, key: Any, group: int) -> Entry | None:
        place = self._place(key, group)
        self._cut.seek(place)
        if self._cut.key() != place:
            self._cut.status()
            return None
        found, data = self._entry(place, self._cut.value())
        return found, None, data

    def group(self, group: int, portion: int) -> Iterator[Portion]:
        return self._walk(self._cut, group, portion)

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
        at.status()  # raises where it ended because it could not read on

    def _entry(self, place: bytes, stored: bytes) -> tuple[Any, bytes]:
        """The key and the encoded value."""
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
    """State in a RocksDB of its own in `folder`, which must be new, and is deleted by `close`. Entries written since
    the last checkpoint are in memory first, up to `top_entries` per table; the oldest beyond that go to disk."""

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
        """Table -> (entries of its top layer at the last look, how many there may be)."""
        self._left: int | None = None
        """How many entries there were when it was closed."""
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
        """A table of the database."""
        absent = self.top_entries + self.top_entries // 2
        return DiskBase(self._db, self._passing, index, codec, group_of, self.cache_entries, absent)

    def relieve(self) -> None:
        """Moves the surplus of the top layers to disk. Of many new keys at once only those go at once for which there is no
        room; the rest makes room for the next ones bit by bit."""
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
        if table.frozen is not None:  # left by an aborted checkpoint; it is below, and goes first
            for _ in self._drain(table, self._last().changed[table.index][0], None):
                pass
        top, spilled = table.top, table.spilled
        for key in list(islice(table.deleted, max(deleted, 0))):
            table.deleted.discard(key)
            if key not in top:
                base.remove(key, self._group_of(table, key))
                spilled.add(key)
        base.commit()
        for key in list(islice(top, max(over, 0))):
            value = top[key]
            if self.on_inexact is not None and not comes_back(value):
                self.on_inexact()  # it comes back as its bytes give it, behind no cut
            base.put(key, value, self._group_of(table, key), self._encoder.value(table, key, value))
            del top[key]
            table.deleted.discard(key)
            spilled.add(key)
        base.commit()
        table.layered = True

    def _limit(self, table: StateTable) -> int:
        """How many entries the top layer may have. Looks again at some whenever there are twice as many."""
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
        """Where keys are noted that are not in any confirmed checkpoint."""
        if not self.generations:
            made = Generation(0, len(self.tables))
            made.aborted = True
            self.generations.append(made)
        return self.generations[-1]

    def entries(self) -> int:
        """How many entries there are; once it is closed, how many there were."""
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
