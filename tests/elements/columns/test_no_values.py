"""What numpy and pandas have in place of values, and values that no column holds: refused with the column, never raw."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import tailrace as tr
from search.value_shapes import NO_VALUES
from tailrace.elements.columns.misfit import Misfit, type_for
from tailrace.elements.columns.schemas import columns_of

KINDS = [
    pa.bool_(), pa.int64(), pa.float64(), pa.float32(), pa.decimal128(10, 2), pa.decimal256(60, 2), pa.string(), pa.binary(),
    pa.date32(), pa.date64(), pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.timestamp("s"), pa.timestamp("ns", "UTC"),
    pa.time64("us"), pa.time32("s"), pa.duration("us"), pa.duration("ns"), pa.null(), pa.dictionary(pa.int8(), pa.string()),
    pa.list_(pa.timestamp("us")), pa.list_(pa.int64(), 1), pa.map_(pa.string(), pa.timestamp("us", "UTC")),
    pa.struct([("a", pa.timestamp("us"))]), pa.month_day_nano_interval(),
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_what_is_no_value_is_refused_with_its_column(kind: pa.DataType) -> None:
    for value in NO_VALUES:
        for held in (value, [value], {"a": value}):
            for others in ([], [(None,)]):
                with pytest.raises(Misfit, match=r"column 'c"):
                    columns_of([*others, (held,)], pa.schema({"c": kind}))


@pytest.mark.parametrize("value", NO_VALUES, ids=lambda value: type(value).__name__)
def test_no_type_is_advised_that_would_not_take_it(value: Any) -> None:
    advised = type_for(value)
    if advised is not None:
        assert columns_of([(value,)], pa.schema({"c": advised})).num_rows == 1


def test_a_job_names_the_operator_and_the_record() -> None:
    env = tr.Environment(parallelism=1)
    env.from_collection([(NO_VALUES[0],)]).to_columns("at timestamp", name="typed").sink_to(tr.sinks.Collect())
    with pytest.raises(tr.JobFailed, match=r"'typed'.*record \(NaT,\).*column 'at'.*use None") as caught:
        tr.testing.run(env)
    assert "would take it" not in str(caught.value)
