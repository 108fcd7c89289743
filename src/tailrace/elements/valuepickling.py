"""Pickles of values of state and of records, with the classes of their objects; and their way into the next version of a
program.

The bytes are the ones that pickle writes by itself. Beside them the shapes of all classes of objects in them are noted
(`elements.valueclasses`). If one of these has another shape now, its objects are mapped while they are unpickled: in place
of the class the unpickler gets a stand-in, which makes today's objects from the written values.
"""

from __future__ import annotations

import copyreg
import pickle
import struct
import sys
from collections.abc import Callable, Iterable
from io import BytesIO
from operator import methodcaller
from typing import Any

import msgspec

from tailrace.elements.valueclasses import ChangedClass, ClassShape, Renewal, Shapes, pickled_shape, renewal, value_text

Decode = Callable[[Any], Any]

_reduced = methodcaller("__reduce_ex__", 5)
_GLOBAL = b"\x93"
"""Opcode by which pickle writes a name. A pickle without it has no objects of classes."""
_DESCRIBED = struct.Struct("<BI")
_MARK = 1
"""First byte of a value with shapes. A pickle begins with another byte."""
_encode = msgspec.msgpack.encode
_shapes_decoder = msgspec.msgpack.Decoder(Shapes)


class ClassNotes(dict[type, Callable[[Any], Any]]):
    """The classes of pickled objects, with their shapes. It is the dispatch table of a pickler, which looks up each class in
    it. The entries do what pickle does without a table."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: dict[str, ClassShape] = {}
        self._again: tuple[BytesIO, pickle.Pickler] | None = None
        """Buffer and pickler of `dumps`, used again for each value; None before its first use."""

    def __missing__(self, kind: type) -> Callable[[Any], Any]:
        if issubclass(kind, type):
            raise KeyError(kind)  # the object is a class with a metaclass, which is written by its name
        made = copyreg.dispatch_table.get(kind)
        if made is None:
            made = _reduced
            shape = pickled_shape(kind)
            if shape is not None:
                self.shapes[shape.name] = shape
        self[kind] = made
        return made

    def add(self, shapes: Iterable[ClassShape]) -> None:
        """Notes shapes of objects that are not pickled again."""
        for shape in shapes:
            self.shapes.setdefault(shape.name, shape)

    def dumps(self, value: Any) -> bytes:
        """The pickle of a value, whose classes are noted. For many small and mostly plain values."""
        if not self:  # no object of a class was pickled so far
            data = pickle.dumps(value, 5)
            if _GLOBAL not in data:
                return data
        if self._again is None:
            self._again = self._new_pickler()
        buffer, pickler = self._again
        buffer.seek(0)
        buffer.truncate()
        try:
            pickler.dump(value)
        finally:
            pickler.clear_memo()
        return buffer.getvalue()

    def dump(self, value: Any) -> bytes:
        """The pickle of a value, whose classes are noted. For a large or single value."""
        buffer, pickler = (
            self._new_pickler()
        )  # no attribute refers to them: else each frame would be a cycle of garbage
        pickler.dump(value)
        return buffer.getvalue()

    def _new_pickler(self) -> tuple[BytesIO, pickle.Pickler]:
        buffer = BytesIO()
        pickler = pickle.Pickler(buffer, 5)
        pickler.dispatch_table = self
        return buffer, pickler

    @property
    def listed(self) -> Shapes:
        """The shapes, in the order in which their classes were found."""
        return tuple(self.shapes.values())


_Writing = tuple[ClassNotes, BytesIO, pickle.Pickler]
_spare: list[_Writing] = []
"""Picklers that have met no class yet. To make one takes three times as long as to pickle a small batch."""
_SMALL, _SMALL_BYTES = 64, 1 << 16
"""Most records and bytes of a small batch. A pickler keeps a table as large as its largest pickle, and clears all of it
after each."""


def pickle_values(values: list[Any]) -> tuple[bytes, Shapes]:
    """The pickle of the records of a batch, and the shapes of the classes of their objects."""
    if len(values) > _SMALL:
        notes = ClassNotes()
        return notes.dump(values), notes.listed
    try:
        writing = _spare.pop()  # one step, so that no two threads get one pickler
    except IndexError:
        notes = ClassNotes()
        writing = notes, *notes._new_pickler()
    notes, buffer, pickler = writing
    pickler.dump(values)
    data = buffer.getvalue()
    if notes:  # they belong to this batch alone
        return data, notes.listed
    if len(data) > _SMALL_BYTES:
        return data, ()
    pickler.clear_memo()
    buffer.seek(0)
    buffer.truncate()
    _spare.append(writing)
    return data, ()


# Reading.


def loader(shapes: Iterable[ClassShape]) -> Decode:
    """The function that unpickles values whose objects had these shapes. Raises `ChangedClass` if one cannot be mapped."""
    changed = {one.old.name: one for shape in shapes if (one := renewal(shape)) is not None}
    if not changed:
        return pickle.loads
    standing = {name: _standing_in(one) for name, one in changed.items()}
    by_class = {one.kind: standing[name] for name, one in changed.items()}
    unused = list(map(sys.getrefcount, standing.values()))

    def load(data: Any) -> Any:
        value = _Unpickler(BytesIO(data), standing).load()
        if list(map(sys.getrefcount, standing.values())) == unused:
            return value
        # The value refers to a stand-in.
        if len(by_class) < len(standing):
            several = ", ".join(sorted(standing))
            raise ChangedClass(f"some of the classes {several} are one class now, and a value refers to it")
        return _CarefulUnpickler(BytesIO(data), by_class).load()

    return load


_InPython: Any = pickle._Unpickler


class _CarefulUnpickler(_InPython):  # type: ignore[misc]
    """An unpickler that distinguishes objects of a class from the class itself, such as the factory of a `defaultdict`,
    which must become today's class. It is written in Python, and slower than `_Unpickler`."""

    dispatch: dict[int, Callable[..., None]] = dict(_InPython.dispatch)

    def __init__(self, file: BytesIO, standing: dict[type, Any]) -> None:
        super().__init__(file)
        self._standing = standing
        self._made: list[Any] = []

    def load(self) -> Any:
        """The value, in which every object is of today's class."""
        value = super().load()
        for one in self._made:
            if type(one) in self._standing.values():  # its pickle had no state, so it was not set yet
                one.__setstate__({})
        return value

    def _stand_in(self, kind: Any) -> Any:
        return self._standing.get(kind, kind) if isinstance(kind, type) else kind

    def _new(self, kind: Any, args: Any, options: Any) -> None:
        kind = self._stand_in(kind)
        made = kind.__new__(kind, *args, **options)
        if type(made) is kind:
            self._made.append(made)
        self.append(made)

    def load_newobj(self) -> None:
        args, kind = self.stack.pop(), self.stack.pop()
        self._new(kind, args, {})

    def load_newobj_ex(self) -> None:
        options, args, kind = self.stack.pop(), self.stack.pop(), self.stack.pop()
        self._new(kind, args, options)

    def load_reduce(self) -> None:
        args, function = self.stack.pop(), self.stack.pop()
        if function is _REBUILD:
            args = (self._stand_in(args[0]), *args[1:])
        self.append(self._stand_in(function)(*args))

    dispatch[pickle.NEWOBJ[0]] = load_newobj
    dispatch[pickle.NEWOBJ_EX[0]] = load_newobj_ex
    dispatch[pickle.REDUCE[0]] = load_reduce


class _WithKeywords(msgspec.Struct, kw_only=True):
    one: int


_REBUILD = _WithKeywords(one=1).__reduce__()[0]
"""Function by which msgspec makes a struct with keyword-only fields from its class."""


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: BytesIO, standing: dict[str, Any]) -> None:
        super().__init__(file)
        self._standing = standing

    def find_class(self, module: str, name: str) -> Any:
        found = self._standing.get(f"{module}:{name}")
        return super().find_class(module, name) if found is None else found


def _standing_in(one: Renewal) -> Any:
    """The stand-in that the unpickler calls in place of a class."""
    if one.old.form == "enum":
        return _MemberByName(one)
    if one.old.form in ("struct", "keywords"):
        return _struct_by_names(one)
    return _tuple_by_names(one) if one.old.form == "tuple" else _object_by_names(one)


class _MemberByName:
    """The stand-in for an Enum: it finds members by their written values, or by name if pickle wrote the name."""

    def __init__(self, one: Renewal) -> None:
        self._old = one.old
        self._members: Any = one.kind
        self._names = {text: name for name, text in reversed(list(zip(one.old.fields, one.old.values, strict=True)))}

    def __call__(self, value: Any) -> Any:
        name = self._names.get(value_text(value))
        if name is None:
            raise ChangedClass(f"no member of {self._old.name} had the value {value!r}, and its values are others now")
        return self._members[name]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._members, name)


def _struct_by_names(one: Renewal) -> Callable[..., Any]:
    def make(*values: Any, **more: Any) -> Any:
        return one.kind(**one.renew(dict(zip(one.old.fields, values, strict=False)) | more))

    return make


def _tuple_by_names(one: Renewal) -> type:
    kind: Any = one.kind

    def new(cls: type, *values: Any) -> Any:
        found = one.renew(dict(zip(one.old.fields, values, strict=True)))
        return tuple.__new__(kind, [found[name] for name in kind._fields])

    return type(kind.__name__, (), {"__new__": new})


def _object_by_names(one: Renewal) -> type:
    kind = one.kind

    def setstate(self: Any, state: Any) -> None:
        found = one.renew(_by_name(one.old, state))
        object.__setattr__(self, "__class__", kind)
        missing = sorted(name for name in one.now if name not in found)
        if missing and one.complete:
            raise ChangedClass(f"an object of {one.old.name} had no {missing[0]!r}, and it has no default now")
        for name, value in found.items():
            object.__setattr__(self, name, value)

    try:
        return _unseen(kind, {"__slots__": (), "__setstate__": setstate})
    except TypeError as error:
        raise ChangedClass(f"class {one.old.name} has other fields now, and allows no mapping ({error})") from error


class _Unseen:
    __slots__ = ()

    def __init_subclass__(cls) -> None:
        pass


def _unseen(kind: type, names: dict[str, Any]) -> type:
    """A subclass that is made without a call of `__init_subclass__` or a metaclass: they may list their classes."""

    def mro(cls: type) -> list[type]:
        first, *others = type.mro(cls)
        return [first, _Unseen, *others]

    meta = type.__new__(type, "Unseen", (type(kind),), {"mro": mro})
    return type.__new__(meta, kind.__name__, (kind,), names)


def _by_name(old: ClassShape, state: Any) -> dict[str, Any]:
    """The attributes of an object by name, from its pickled state."""
    if old.form == "listed" or not isinstance(state, dict | tuple):
        return dict(zip(old.fields, state, strict=True))
    if isinstance(state, dict):
        return dict(state)
    attributes, slots = state
    return {**(attributes or {}), **slots}


# Single values.


def dump_described(value: Any) -> bytes:
    """The pickle of a value, with the shapes of its classes before it if there are some."""
    notes = ClassNotes()
    data = notes.dump(value)
    if not notes.shapes:
        return data
    shapes = _encode(notes.listed)
    return _DESCRIBED.pack(_MARK, len(shapes)) + shapes + data


def load_described(data: bytes) -> Any:
    """A value from the bytes of `dump_described`, or from a pickle. Raises `ChangedClass`."""
    shapes = shapes_in(data)
    if data[:1] != bytes((_MARK,)):
        return pickle.loads(data)
    length = _DESCRIBED.unpack_from(data)[1]
    return loader(shapes)(data[_DESCRIBED.size + length :])


def shapes_in(data: bytes) -> Shapes:
    """The shapes of the classes in the bytes of `dump_described`, found without unpickling."""
    if data[:1] != bytes((_MARK,)):
        return ()
    length = _DESCRIBED.unpack_from(data)[1]
    return _shapes_decoder.decode(data[_DESCRIBED.size : _DESCRIBED.size + length])
