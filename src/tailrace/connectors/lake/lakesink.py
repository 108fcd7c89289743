"""The base of sinks of lake tables: one worker commits what all subtasks have prepared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from tailrace.connectors import folders
from tailrace.connectors.filesinks import FileSink
from tailrace.connectors.hidden import FileOrigin, protocol_of
from tailrace.connectors.lake.datafiles import covered_names
from tailrace.connectors.transactional import PreparedTransaction, Scope, ServerTransaction, TransactionalSink
from tailrace.errors import ConfigError

CONFLICTS = 20
"""Number of conflicts with other writers of the table after which a publication is given back, to be tried later."""


class LakeSink(TransactionalSink, FileSink):
    """A sink of a lake table: its transactions are committed together, by one worker."""

    one_publisher = True
    base: str
    """The table's folder, a path or URL."""

    @property
    def place(self) -> str | None:
        return None  # two sinks may write into one table

    def encode(self, batch: Any) -> Iterable[bytes]:
        raise NotImplementedError  # writers make files

    def transaction(self, scope: Scope) -> ServerTransaction:
        raise NotImplementedError  # one commit has the transactions of all scopes

    def publish(self, prepared: Sequence[bytes]) -> None:
        with self._lock:
            self.commit_outputs(list(map(PreparedTransaction.decode, prepared)))

    def commit_outputs(self, outputs: Sequence[PreparedTransaction]) -> None:
        """Commits what the table does not have yet of these transactions."""
        raise NotImplementedError

    def settled(self, prepared: Sequence[bytes]) -> None:
        """Does nothing: the marks are in the table."""

    def _sweep(self, goes: Callable[[FileOrigin], bool], keep: Sequence[bytes] = ()) -> None:
        if protocol_of(self.base) is None and self.writes_files:
            folders.folder_at(self.base).sweep(goes, covered_names(keep), traces=False)

    @property
    def writes_files(self) -> bool:
        """True if transactions are files, and not changes."""
        return True


def check_names(given: Any, setting: str, who: str) -> tuple[str, ...]:
    """Names of columns, each once. A single one may be a text. Raises `ConfigError` for what is none."""
    names = (given,) if isinstance(given, str) else tuple(given or ())
    if not all(isinstance(one, str) and one for one in names) or len(set(names)) < len(names):
        raise ConfigError(f"{who}: {setting} takes names of columns, each once, not {given!r}")
    return names


def check_lost_output(given: Any, who: str) -> Literal["fail", "ignore"]:
    """The setting `lost_output`, checked."""
    if given not in ("fail", "ignore"):
        raise ConfigError(f"{who}: lost_output must be 'fail' or 'ignore', not {given!r}")
    return given  # type: ignore[no-any-return]
