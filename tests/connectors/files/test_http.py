"""Files behind a web server: read from any position on, where it serves parts of files; never written."""

from __future__ import annotations

import contextlib
import gzip
import io
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tailrace as tr

SCHEMA = pa.schema([("n", pa.int64())])
COUNT = 3000
LINES = "".join(f"{n}\n" for n in range(COUNT)).encode()


def parquet() -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table({"n": range(COUNT)}), out, row_group_size=500)
    return out.getvalue()


FILES: dict[str, tuple[bytes, Any]] = {
    "a.csv": (b"n\n" + LINES, lambda url: tr.sources.Csv(url, SCHEMA)),
    "a.csv.gz": (gzip.compress(b"n\n" + LINES), lambda url: tr.sources.Csv(url, SCHEMA)),
    "a.json": (b"".join(b'{"n":%d}\n' % n for n in range(COUNT)), lambda url: tr.sources.Json(url, SCHEMA)),
    "a.parquet": (parquet(), lambda url: tr.sources.Parquet(url)),
}


def in_lives(source: tr.Source) -> list[Any]:
    """The numbers that readers give of which each goes on from the position of the one before."""
    found: list[Any] = []
    [split] = source.splits(1)
    position, records = None, list[Any]()
    while records is not None:
        reader = source.reader(split, position)
        records = reader.read(700, 0.0)
        found += [row.n for row in records or ()]
        position = reader.position
        reader.close()
    return found


class Whole(SimpleHTTPRequestHandler):
    """A server that gives whole files only."""

    def log_message(self, *args: Any) -> None:
        pass


class Parts(Whole):
    """A server that gives parts of files."""

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        if asked is None:
            return super().do_GET()
        first, _, last = asked.removeprefix("bytes=").partition("-")
        data = Path(self.translate_path(self.path)).read_bytes()
        part = data[int(first) : int(last) + 1]
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part)
        return None


@contextlib.contextmanager
def serving(handler: Any, folder: Path) -> Iterator[str]:
    for name, (data, _) in FILES.items():
        (folder / name).write_bytes(data)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_reader_goes_on_where_another_was(tmp_path: Path) -> None:
    with serving(Parts, tmp_path) as url:
        for name, (_, source) in FILES.items():
            assert in_lives(source(f"{url}/{name}")) == list(range(COUNT)), name


def test_a_server_without_parts_of_files_is_an_error_and_gives_no_other_record(tmp_path: Path) -> None:
    with serving(Whole, tmp_path) as url, pytest.raises(ValueError, match="appear to support range requests"):
        in_lives(FILES["a.csv"][1](f"{url}/a.csv"))


@pytest.mark.parametrize("sink", [tr.sinks.TextFiles, tr.sinks.Parquet, tr.sinks.Csv, tr.sinks.Json])
def test_a_web_server_is_not_written(sink: Any) -> None:
    with pytest.raises(tr.ConfigError, match="a web server is read only"):
        sink("https://h/out")
