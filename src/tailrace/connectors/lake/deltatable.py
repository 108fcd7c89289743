"""Delta tables through `deltalake`: opening them, their columns, and what the sink cannot write into."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa

from tailrace.connectors.hidden import SinkFolder, protocol_of
from tailrace.connectors.lake.datafiles import StoreFolder
from tailrace.connectors.localfiles import LocalSinkFolder
from tailrace.errors import ConfigError

KNOWN_FEATURES = {"appendOnly", "invariants", "timestampNtz", "changeDataFeed", "v2Checkpoint", "vacuumProtocolCheck"}
"""Features of a writer that files without more notes satisfy. Invariants are looked for in the columns."""
ONLY_APPEND = {"deletionVectors"}
"""Features that an append satisfies, and a merge of `deltalake` does not."""


def client() -> ModuleType:
    """The module deltalake. Raises `ConfigError` where it is not installed."""
    try:
        import deltalake
    except ImportError:
        raise ConfigError('Delta tables need deltalake: pip install "tailrace[delta]"') from None
    return deltalake


def errors() -> ModuleType:
    """The exceptions of deltalake."""
    import deltalake.exceptions

    return deltalake.exceptions


class DeltaFacts(NamedTuple):
    """The properties of a table that its writers need. It can be pickled."""

    schema: pa.Schema
    partition_by: tuple[str, ...]


class DeltaPlace:
    """The place of a Delta table: its path or URL, and how to get there."""

    def __init__(self, base: str, options: Mapping[str, str] | None, owner: str) -> None:
        if options is not None and not (
            isinstance(options, Mapping) and all(isinstance(x, str) for pair in options.items() for x in pair)
        ):
            raise ConfigError(f"{owner}: storage_options takes texts by name, as deltalake has them")
        self.base, self.options, self.owner = base, dict(options or {}), owner

    def table(self, **options: Any) -> Any | None:
        """The table, as `deltalake` opens it; None if there is none."""
        if protocol_of(self.base) is None and not os.path.isdir(os.path.join(self.base, "_delta_log")):
            client()
            return None
        delta = client()
        with contextlib.suppress(errors().TableNotFoundError):
            return delta.DeltaTable(self.base, storage_options=self.options or None, **options)
        return None

    def create(self, schema: pa.Schema, partition_by: tuple[str, ...]) -> Any:
        """The table, created if there is none."""
        if protocol_of(self.base) is None:
            os.makedirs(self.base, exist_ok=True)
        delta = client()
        made = delta.Schema.from_arrow(schema)
        options = {"partition_by": list(partition_by), "mode": "ignore", "storage_options": self.options or None}
        return delta.DeltaTable.create(self.base, made, **options)

    def has_version(self, version: int) -> bool:
        """True if the log still has this version: the table was not made anew since it was opened, nor is its log so old
        that it must be read again."""
        path = f"_delta_log/{version:020}.json"
        if protocol_of(self.base) is None:
            return os.path.exists(os.path.join(self.base, path))
        return bool(self.filesystem().get_file_info(path).is_file)

    def read_log(self, version: int) -> str | None:
        """The log's file of a version; None if there is none."""
        path = f"_delta_log/{version:020}.json"
        try:
            if protocol_of(self.base) is None:
                with open(os.path.join(self.base, path), encoding="utf-8") as file:
                    return file.read()
            with self.filesystem().open_input_file(path) as file:
                return bytes(file.read()).decode()
        except FileNotFoundError:
            return None

    def open_file(self, path: str) -> tuple[str, Any]:
        """The path or URL of a file that the log has, and the open file; None for one on a local path. Raises
        `ConfigError` if it is gone."""
        name = unquote(path)
        if protocol_of(name) is not None or name.startswith(("/", "file:")):
            raise ConfigError(
                f"{self.owner}: {self.base}: its file {name} is at another place (a shallow clone): let Spark read it"
            )
        whole = f"{self.base}/{name}"
        try:
            if protocol_of(self.base) is None:
                os.stat(whole)
                return whole, None
            return whole, self.filesystem().open_input_file(name)
        except FileNotFoundError:
            raise ConfigError(
                f"{self.owner}: {whole} is gone: a VACUUM has removed it before its rows were read. Its retention must be "
                f"longer than the time that the job is behind or down; start without a checkpoint"
            ) from None

    def folder(self) -> SinkFolder:
        """The folder of the table's files."""
        if protocol_of(self.base) is None:
            return LocalSinkFolder(self.base)
        files = self.filesystem()
        return StoreFolder(self.base, files.open_output_stream)

    def filesystem(self) -> Any:
        """The files below the table's folder, as a `pyarrow.fs.FileSystem`."""
        from deltalake.fs import DeltaStorageHandler
        from pyarrow.fs import PyFileSystem

        return PyFileSystem(DeltaStorageHandler(self.base, self.options))

    @contextlib.contextmanager
    def checking(self) -> Iterator[None]:
        """Context in which errors of the table and its store are `ConfigError`s that name the place."""
        client()
        try:
            yield
        except (errors().DeltaError, OSError, ValueError) as error:
            if isinstance(error, ConfigError):
                raise
            text = next(iter(str(error).splitlines()), type(error).__name__)
            raise ConfigError(f"{self.owner}: {self.base}: {text} (url=, storage_options=)") from error


def facts_of(table: Any) -> DeltaFacts:
    """The properties of a table."""
    return DeltaFacts(pa.schema(table.schema().to_arrow()), tuple(table.metadata().partition_columns))


def check_features(table: Any, merges: bool) -> None:
    """Raises `ConfigError` for a table that requires more of its writers than the sink does."""
    protocol, settings = table.protocol(), table.metadata().configuration
    for setting in settings:
        if setting.startswith("delta.constraints."):
            raise ConfigError(f"the table has the constraint {setting[18:]!r}, which the sink does not check: drop it")
    if settings.get("delta.columnMapping.mode", "none") != "none":
        raise ConfigError(
            "the table's files name columns in their own way (delta.columnMapping.mode), which the sink does not"
        )
    if "delta.setTransactionRetentionDuration" in settings:
        raise ConfigError(
            "the table forgets transactions of applications (delta.setTransactionRetentionDuration), and the sink knows "
            "by them what it has written: unset it"
        )
    if merges and settings.get("delta.appendOnly", "false").lower() == "true":
        raise ConfigError("the table only takes appends (delta.appendOnly), and mode='upsert' changes rows")
    for name, marks in _columns_with_rules(table):
        raise ConfigError(f"column {name!r} has a rule ({marks}) that the sink does not apply")
    features = set(protocol.writer_features or ()) if protocol.min_writer_version >= 7 else set()
    unknown = sorted(features - KNOWN_FEATURES - (set() if merges else ONLY_APPEND))
    idle = {"checkConstraints", "columnMapping", "generatedColumns", "identityColumns"}  # looked for above
    unknown = [one for one in unknown if one not in idle]
    if unknown:
        what = "mode='upsert' cannot keep" if unknown[0] in ONLY_APPEND else "the sink does not know"
        raise ConfigError(f"the table has the feature {unknown[0]!r}, which {what}: let Spark write into it")


_RULES = re.compile(r"delta\.(invariants|generationExpression|identity\.\w+)")


def _columns_with_rules(table: Any) -> Iterator[tuple[str, str]]:
    for field in table.schema().fields:
        for name in field.metadata or {}:
            if _RULES.fullmatch(name):
                yield field.name, name
