"""CSV files: records that may have line breaks in quotes, with exact positions, read by pyarrow.

Python's `csv` finds where records end, since only then a position is exact; it is needed only for lines with quotes.
pyarrow's reader makes the columns.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.csv as arrow_csv

from tailrace.connectors.files.places import files_now, files_of
from tailrace.connectors.files.records import Decoder, Head, RawLines, fault_text
from tailrace.connectors.files.sources import RecordFiles
from tailrace.connectors.lines import LineReader
from tailrace.elements.batches import Form
from tailrace.errors import ConfigError


class Csv(RecordFiles):
    """A source of the records of CSV files (UTF-8): rows with the names of the columns, or record batches with
    `form="columns"`.

    - `path`: a file, a folder or a glob pattern, local or a URL. Columns in the names of folders (`day=2024-01-01`) are
      columns of the records, unless `partitions=False`; a schema there gives their types.
    - `schema`: the columns, as DDL text, a `StructType` or a `pyarrow.Schema`. With a `header`, files may have them in any
      order, and others beside them. Without a schema all columns of the header are text.
    - `header`: True if the first record of each file has the names of its columns.
    - `sep` separates fields, and `quote` is around fields with separators, line breaks or quotes (which are doubled); None:
      files have no quotes. An unquoted field that is equal to `null` is null.
    - `follow`: without end, also files that come later; looks for them each `poll` seconds.

    Raises `ConfigError` for a path without files, wrong settings, and a header without the columns of the schema."""

    description = "csv"

    def __init__(
        self,
        path: str,
        schema: Any = None,
        *,
        header: bool = True,
        sep: str = ",",
        quote: str | None = '"',
        null: str = "",
        form: Form = "rows",
        partitions: bool | Any = True,
        follow: bool = False,
        poll: float | None = None,
    ) -> None:
        for name, text in (("sep", sep), ("quote", '"' if quote is None else quote)):
            if not isinstance(text, str) or len(text) != 1 or not text.isascii() or text in "\r\n" or sep == quote:
                raise ConfigError(
                    f"Csv: {name} must be one ASCII character, and sep another one than quote, not {text!r}"
                )
        if not isinstance(null, str):
            raise ConfigError(f"Csv: null must be a text, not {null!r}")
        self.header, self.sep, self.quote, self.null = header, sep, quote, null
        self.by_name = schema is not None
        """True if files may have other columns beside the declared ones."""
        super().__init__(path, schema, form, partitions, follow, poll)
        if self.own is None:
            self.own = self._first_head()
        nested = next((field for field in self.own if pa.types.is_nested(field.type)), None)
        if nested is not None:
            raise ConfigError(f"Csv: column {nested.name!r} is {nested.type}, and a field of CSV holds one value")
        self._columns(self.own)

    def _first_head(self) -> pa.Schema:
        """The columns in the header of the first file that has one, as texts."""
        if not self.header:
            raise ConfigError("Csv: files without a header need a schema: Csv(path, schema, header=False)")
        paths = files_now(self.path) if self.follow else files_of(self.path)
        for path in paths:
            lines = self.raws(path, path, None)
            lines.close()
            if lines.head:
                return pa.schema([(name, pa.string()) for name in lines.head])
        raise ConfigError(f"Csv: no file at {self.path} has a header yet: give the source a schema")

    def raws(self, path: str, split: Any, position: Any) -> CsvLines:
        make = partial(CsvLines, path=path, sep=self.sep, quote=self.quote, raw=self._raw)
        head = None
        if self.header and position:
            beginning = make(LineReader(path, None, decodes=False))
            head = beginning.read_head()
            beginning.close()
        lines = make(LineReader(path, position, decodes=False))
        if self.header:
            lines.head = head if position else lines.read_head()
        if lines.head is not None and self.own is not None:
            self._check(lines.head, path)
        return lines

    def _check(self, head: tuple[str, ...], path: str) -> None:
        """Raises `ConfigError` for a header that does not have the columns of the source."""
        assert self.own is not None
        own = self.own.names
        missing = [name for name in own if name not in head]
        if missing or (not self.by_name and len(head) > len(own)):
            raise ConfigError(
                f"Csv: the header of {path} has the columns ({', '.join(head)}), and the source ({', '.join(own)}); give it "
                f"a schema of columns that all files have"
            )

    def decoder(self, form: Form) -> Decoder:
        return CsvDecoder(self, form)


class CsvLines(RawLines):
    """The records of a CSV file as bytes, and their places."""

    def __init__(self, lines: LineReader, path: str, sep: str, quote: str | None, raw: bool = False) -> None:
        super().__init__(lines)
        self.path, self.sep, self.quote, self.raw = path, sep, quote, raw
        """`raw`: true if records with wrong quotes are returned to the caller, who sets them aside."""
        self.waiting: list[bytes] = []
        """Lines of a record whose end was not read yet."""
        self.begin = 0
        """The byte at which these lines begin."""

    def read_head(self) -> Head:
        """The names in the header; None in an empty file."""
        found = self.read(1, 0.0)
        if found is None:
            return None
        names = tuple(next(csv.reader(io.StringIO(found[0].decode(), newline=""), **dialect(self.sep, self.quote))))
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ConfigError(
                f"Csv: the header of {self.path} has the column {twice!r} twice; give a schema, header=False"
            )
        return names

    def read(self, limit: int, now: float) -> list[bytes] | None:
        while True:
            at = self.lines.splitter.at
            found: list[bytes] | None = self.lines.read(limit, now)
            if found is None and not self.waiting:
                return None
            if not self.waiting and found is not None:
                self.begin = at + self._mark(found, at)
            records = self._join(self.waiting + (found or []), last=found is None)
            if records:
                return records

    def _join(self, lines: list[bytes], last: bool) -> list[bytes]:
        """The records of lines. The lines of a record that has not ended wait for more of them, and become one record: so
        there are no more records than lines were read."""
        quote, wrong = self.quote, None
        records, rest = lines, list[bytes]()
        if quote is not None and any(quote.encode() in line for line in lines):
            records, rest, wrong = join_lines(lines, dialect(self.sep, quote), last)
        kept, self.waiting = self._place(records, self.begin), rest
        self.begin += sum(map(len, records)) + len(records)
        if wrong is not None and not self.raw:
            index, fault = wrong
            at = self.begin - sum(map(len, records[index:])) - len(records[index:])
            raise ValueError(fault_text(self.path, at, records[index], fault))
        return kept

    @property
    def position(self) -> Any:
        lines = self.lines
        return lines.version.position(self.begin) if self.waiting else lines.position


def dialect(sep: str, quote: str | None) -> dict[str, Any]:
    """The arguments of `csv.reader`."""
    quoting = csv.QUOTE_NONE if quote is None else csv.QUOTE_MINIMAL
    return {"delimiter": sep, "quotechar": quote, "quoting": quoting, "strict": True}


class _Feed:
    """Lines for `csv.reader`; notes whether it came to their end."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        self.lines, self.over = iter(lines), False

    def __iter__(self) -> _Feed:
        return self

    def __next__(self) -> str:
        line = next(self.lines, None)
        if line is None:
            self.over = True
            raise StopIteration
        return line.decode("latin-1") + "\n"


Wrong = tuple[int, Exception]
"""Index of a record whose quotes are wrong, and its fault."""


def join_lines(lines: list[bytes], how: dict[str, Any], last: bool) -> tuple[list[bytes], list[bytes], Wrong | None]:
    """(records, rest, wrong): the records that these lines make, the lines behind the last one, and the first record that
    is wrong. A wrong record ends with the line in which its fault is seen. After the `last` lines there is no rest."""
    records: list[bytes] = []
    done, wrong = 0, None
    while done < len(lines):
        start, feed = done, _Feed(lines[done:])
        reader = csv.reader(feed, **how)
        try:
            for _ in reader:
                end = start + reader.line_num
                records.append(lines[done] if end == done + 1 else b"\n".join(lines[done:end]))
                done = end
        except csv.Error as error:
            if feed.over and not last:
                return records, lines[done:], wrong
            end = start + reader.line_num
            wrong = wrong or (len(records), ValueError("the quote is not closed") if feed.over else error)
            records.append(b"\n".join(lines[done:end]))
            done = end
    return records, [], wrong


class CsvDecoder(Decoder):
    """A decoder of CSV records by pyarrow."""

    def __init__(self, source: Csv, form: Form) -> None:
        super().__init__(form, source.partitions)
        assert source.own is not None
        self.own, self.null = source.own, source.null
        self.sep, self.quote = source.sep, source.quote
        self._names: tuple[str, ...] | None = None
        self._options: dict[str, Any] = {}

    def batch(self, raws: Sequence[bytes], head: Head) -> pa.RecordBatch:
        names = tuple(self.own.names) if head is None else head
        if names != self._names:
            self._options, self._names = self._reading(names), names
        data = b"\n".join(raws) + b"\n"
        reading = arrow_csv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=list(names))
        table = arrow_csv.read_csv(io.BytesIO(data), reading, **self._options)
        if table.num_rows != len(raws):
            raise ValueError(f"{len(raws)} records hold {table.num_rows}: a carriage return alone is no line break")
        return pa.RecordBatch.from_arrays([one.combine_chunks() for one in table.columns], schema=self.own)

    def _reading(self, names: tuple[str, ...]) -> dict[str, Any]:
        return {
            "parse_options": arrow_csv.ParseOptions(
                delimiter=self.sep, quote_char=self.quote or False, double_quote=True, newlines_in_values=True
            ),
            "convert_options": arrow_csv.ConvertOptions(
                column_types={field.name: field.type for field in self.own},
                include_columns=self.own.names,
                null_values=[self.null],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                true_values=["true", "True", "TRUE"],
                false_values=["false", "False", "FALSE"],
            ),
        }

    def check(self, raw: bytes) -> None:
        if self.quote is not None and self.quote.encode() in raw:
            try:
                list(csv.reader(io.StringIO(raw.decode() + "\n", newline=""), **dialect(self.sep, self.quote)))
            except csv.Error as error:
                raise ValueError(str(error)) from None
