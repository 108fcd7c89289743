"""Names of Python Data Sources."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import DataSource

import tailrace as tr
from tailrace.spark.datasources.classes import class_of
from tests.spark.datasources.shop import Orders


def test_a_class_of_this_process_is_found_by_its_name_in_any_case_of_letters() -> None:
    assert class_of("Orders", None) is Orders is class_of("ORDERS", None) is class_of(Orders, None)


def test_a_name_that_two_classes_have_is_refused() -> None:
    kinds = [type(name, (DataSource,), {"name": classmethod(lambda cls: "twins")}) for name in ("One", "Two")]
    with pytest.raises(tr.GraphError, match=r"several classes have the name 'twins': .*One, .*Two; pass the class"):
        class_of("twins", None)
    assert len(kinds) == 2


def test_a_name_that_is_not_known_is_refused_with_those_that_are() -> None:
    with pytest.raises(tr.GraphError, match=r"has the name 'csvs'; known here: .*orders.*spark.dataSource.register"):
        class_of("csvs", None)
    with pytest.raises(tr.GraphError, match=r"subclass of pyspark.sql.datasource.DataSource, got 7"):
        class_of(7, None)


def test_a_module_with_a_default_source_is_found_as_spark_finds_it(tmp_path: Path, monkeypatch: Any) -> None:
    text = (
        "from pyspark.sql.datasource import DataSource\n"
        "class DefaultSource(DataSource):\n"
        "    @classmethod\n"
        "    def name(cls):\n"
        "        return 'warehouse'\n"
    )
    (tmp_path / "pyspark_warehouse.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        assert class_of("warehouse", None).__module__ == "pyspark_warehouse"
    finally:
        sys.modules.pop("pyspark_warehouse", None)


@pytest.mark.spark
def test_a_class_that_is_registered_in_the_session_wins_over_others_of_its_name(spark: Any) -> None:
    made = [
        type("Registered", (DataSource,), {"name": classmethod(lambda cls: "registered_one"), "number": number})
        for number in (1, 2)
    ]
    spark.dataSource.register(made[1])
    assert class_of("Registered_One", spark).number == 2  # type: ignore[attr-defined]
