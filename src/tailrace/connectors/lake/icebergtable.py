"""Iceberg tables through `pyiceberg`: catalogs, tables, their columns, and what the sink cannot write into."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any, NamedTuple

import pyarrow as pa

from tailrace.connectors.hidden import normal
from tailrace.connectors.lake.types import ICEBERG, table_schema
from tailrace.errors import ConfigError


def client() -> ModuleType:
    """The module pyiceberg.catalog. Raises `ConfigError` where it is not installed."""
    try:
        import pyiceberg.catalog
    except ImportError:
        raise ConfigError('Iceberg tables need pyiceberg: pip install "tailrace[iceberg]"') from None
    return pyiceberg.catalog


class IcebergFacts(NamedTuple):
    """The properties of a table that its writers need. It can be pickled."""

    schema: pa.Schema
    partition_by: tuple[str, ...]
    other_transforms: tuple[str, ...]
    """Partition fields that are not the values of a column."""
    version: int
    """Version of the format."""
    files: str
    """The folder of new files, a path or URL."""


class IcebergPlace:
    """The place of an Iceberg table: its catalog and its name."""

    def __init__(self, catalog: Any, table: Any, owner: str) -> None:
        library = client()
        if isinstance(catalog, library.Catalog):
            self.name, self.properties = catalog.name, dict(catalog.properties)
        elif isinstance(catalog, str) and catalog:
            self.name, self.properties = catalog, {}
        elif isinstance(catalog, Mapping) and all(isinstance(x, str) for pair in catalog.items() for x in pair):
            self.properties = dict(catalog)
            self.name = self.properties.pop("name", "tailrace")
        else:
            raise ConfigError(
                f"{owner}: a catalog is its name in pyiceberg's configuration, a dict of its properties, or a catalog of "
                f"pyiceberg, not {type(catalog).__name__}"
            )
        if not isinstance(table, str) or "." not in table.strip("."):
            raise ConfigError(f"{owner}: a table has a name such as 'namespace.table', not {table!r}")
        self.table_name, self.owner = table, owner
        self._catalog: Any = None

    def __str__(self) -> str:
        return f"{self.owner}: {self.table_name} in catalog {self.name!r}"

    @property
    def catalog(self) -> Any:
        """The catalog, loaded in this process."""
        if self._catalog is None:
            self._catalog = client().load_catalog(self.name, **self.properties)
        return self._catalog

    def load(self) -> Any:
        """The table as it is now."""
        return self.catalog.load_table(self.table_name)

    def table(self) -> Any | None:
        """The table as it is now; None if there is none."""
        from pyiceberg.exceptions import NoSuchTableError

        with contextlib.suppress(NoSuchTableError):
            return self.load()
        return None

    def create(self, schema: pa.Schema, partition_by: tuple[str, ...]) -> Any:
        """The table, created if there is none; its namespace, too."""
        from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError

        self.catalog.create_namespace_if_not_exists(self.table_name.rpartition(".")[0])
        with contextlib.suppress(TableAlreadyExistsError, CommitFailedException):  # another process was quicker
            created = self.catalog.create_table_transaction(self.table_name, schema)
            with created as transaction, transaction.update_spec() as spec:
                for name in partition_by:
                    spec.add_identity(name)
        return self.load()

    @contextlib.contextmanager
    def checking(self) -> Iterator[None]:
        """Context in which errors of the catalog and its store are `ConfigError`s that name the table."""
        try:
            yield
        except ConfigError:
            raise
        except Exception as error:
            text = next(iter(str(error).splitlines()), "")
            raise ConfigError(f"{self}: {type(error).__name__}: {text} (catalog=, table=)") from error

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_catalog": None}  # connections stay


def facts_of(table: Any, at: IcebergPlace) -> IcebergFacts:
    """The properties of a table."""
    schema = table.schema()
    same = {field.name: schema.find_column_name(field.source_id) for field in table.spec().fields}
    kinds = {field.name: str(field.transform) for field in table.spec().fields}
    identity = tuple(same[name] for name, kind in kinds.items() if kind == "identity")
    others = tuple(f"{kind}({same[name]})" for name, kind in kinds.items() if kind not in ("identity", "void"))
    columns = table_schema(schema.as_arrow(), ICEBERG, str(at))
    return IcebergFacts(columns, identity, others, table.format_version, data_folder(table))


def data_folder(table: Any) -> str:
    """The folder of new files of a table, a path or URL."""
    return normal(table.properties.get("write.data.path", f"{table.location()}/data"))


def check_features(facts: IcebergFacts, at: IcebergPlace) -> None:
    """Raises `ConfigError` for a table that requires more of its writers than the sink does."""
    if facts.version > 2:
        raise ConfigError(f"{at}: the table has version {facts.version} of the format, and the sink writes 1 and 2")
    if facts.other_transforms:
        raise ConfigError(
            f"{at}: the table is partitioned by {facts.other_transforms[0]}, and the sink writes only partitions by the "
            f"values of columns: let Spark write into it, or partition it by a column that holds that value"
        )
