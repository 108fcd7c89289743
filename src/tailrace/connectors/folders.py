"""The folders of file sinks: a file is made under cover, and gets its plain name when it is published.

| where | under cover | published by |
|---|---|---|
| local paths, `file:` | a name that starts with `.` | rename |
| `hdfs:` | a name that starts with `.` | rename |
| `s3:`, `s3a:` | a multipart upload that is not completed | completing it |
| other stores (`gs:`, `abfs:`, …) | a name that starts with `.` | copy and delete |

The small text that `finish` returns is all that `publish` needs, in any process. To publish twice is harmless: names never
repeat, so a plain name that is there was published before. For a published file that was taken away there is a trace
(`connectors.publishing`), an empty file whose name starts with `.`. It stays as long as the file may have to be published
again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tailrace.connectors.hidden import S3, SinkFolder, Uploaded, files_in, protocol_of
from tailrace.connectors.localfiles import FinishedLocal, LocalSinkFolder
from tailrace.connectors.publishing import Finished, make_visible, one_by_one, settle
from tailrace.connectors.remotefiles import FinishedRemote, RemoteFolder
from tailrace.connectors.s3files import FinishedUpload, S3Folder
from tailrace.storage.parallel import at_once


def folder_at(path: str) -> SinkFolder:
    """The folder of a path or URL."""
    protocol = protocol_of(path)
    if protocol is None:
        return LocalSinkFolder(path)
    if protocol in S3:
        return S3Folder(path)
    return RemoteFolder(path)


def publish_files(prepared: Sequence[bytes]) -> None:
    """Gives finished files their plain names. Raises `FileNotFoundError` if one is lost."""
    for files, each in _in_places(prepared):
        make_visible(files, each)


def settle_files(prepared: Sequence[bytes]) -> None:
    """Removes the traces of files that need not be published again."""
    for files, each in _in_places(prepared):
        settle(files, each)


def _in_places(prepared: Sequence[bytes]) -> Iterator[tuple[list[Finished], Any]]:
    """The finished files of these tokens, each group with the function that applies an action to its files: local files one
    after the other, remote ones several at once, since each request takes its time."""
    local: list[Finished] = []
    remote: list[Finished] = []
    for made in (made for one in prepared for made in files_in(one)):
        if isinstance(made, Uploaded):
            remote.append(FinishedUpload(made))
        elif protocol_of(made.final) is None:
            local.append(FinishedLocal(made))
        else:
            remote.append(FinishedRemote(made))
    if local:
        yield local, one_by_one
    if remote:
        yield remote, _at_once


def _at_once(do: Callable[[Finished], object], files: Sequence[Finished]) -> None:
    at_once(do, files, "tailrace-publish")
