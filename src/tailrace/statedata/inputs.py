"""The files of DataFrames that the sources of a checkpoint have left to read. They are in the folder of the job that has
read the DataFrame first, so a savepoint holds copies of them, and a start from it reads these."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import partial
from typing import Any

import msgspec

from tailrace.elements.valuepickling import load_described
from tailrace.state.format import Index
from tailrace.state.manifest import InputFile, Manifest
from tailrace.state.paths import input_place, saved_input, saved_input_folder
from tailrace.statedata.listings import pickled_splits
from tailrace.storage.filesystem import Folder
from tailrace.storage.opening import open_folder
from tailrace.storage.parallel import at_once
from tailrace.storage.reading import check_input, own_indexes
from tailrace.storage.savepoints import Located, copy_inputs
from tailrace.storage.store import Store

DATAFRAME = "DataFrame"
"""The format of positions of a source that reads a DataFrame."""


def readers_of(manifest: Manifest) -> list[str]:
    """The sources of a checkpoint that read DataFrames."""
    return [one.uid for one in manifest.operators if one.kind == "source" and one.shape == [DATAFRAME]]


def unread_inputs(store: Store, manifest: Manifest, dropped: Collection[str] = ()) -> list[Located]:
    """The inputs that the sources of a checkpoint have left to read, as a savepoint is to hold them, each with the path or
    URL where it is now. `dropped`: sources that are left out. Raises `FileNotFoundError` if one is gone."""
    readers = [uid for uid in readers_of(manifest) if uid not in dropped]
    if not readers:
        return []
    indexes = own_indexes(store, manifest).values()
    saved = {one.url: store.url_of(one.name) for one in manifest.inputs}
    folders: dict[tuple[str, str], int] = {}
    found: list[Located] = []
    for uid in readers:
        for url, (folder, file) in _inputs_of(indexes, uid):
            number = folders.setdefault((uid, folder), len(folders))
            found.append((saved.get(url, url), InputFile(uid, url, saved_input(number, file), 0)))
    return at_once(partial(_with_size, store.storage_options), found, "tailrace-inputs")


def moved_inputs(
    folder: str, savepoint: Manifest, uid: str, into: tuple[Folder, str] | None = None, options: Any = None
) -> dict[str, str]:
    """The folders of the inputs that a source has left to read in a savepoint at `folder`, as its state names them, each
    with the folder where they are now. `into`: a folder that gets copies of them, and the beginning of their names there.
    Raises `CheckpointCorrupt` if the savepoint does not have one as it was."""
    now: dict[str, str] = {}
    copied: list[Located] = []
    own = [one for one in savepoint.inputs if one.uid == uid]
    at_once(partial(check_input, open_folder(folder, options)), own, "tailrace-inputs")
    for one in own:
        (place, _, file), saved = one.url.rpartition("/"), f"{folder}/{one.name}"
        if into is None:
            now[place] = saved.rpartition("/")[0]
        else:
            target, name = into[0], f"{into[1]}-{saved_input_folder(one.name)}/{file}"
            copied.append((saved, msgspec.structs.replace(one, name=name)))
            now[place] = target.url_of(name).rpartition("/")[0]
    if into is not None:
        copy_inputs(copied, into[0], options)
    return now


def _inputs_of(indexes: Iterable[Index], uid: str) -> Iterator[tuple[str, tuple[str, str]]]:
    for split, _ in pickled_splits(indexes, uid):
        url = load_described(split)
        place = input_place(url) if isinstance(url, str) else None
        if place is not None:
            yield url, place


def _with_size(options: Any, one: Located) -> Located:
    (place, _, name), file = one[0].rpartition("/"), one[1]
    return one[0], msgspec.structs.replace(file, size=open_folder(place, options).size(name))
