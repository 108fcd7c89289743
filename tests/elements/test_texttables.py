"""Tables of plain text."""

from typing import NamedTuple

from tailrace.elements.texttables import table_of_records


class Visit(NamedTuple):
    page: str
    seconds: float


def test_records_with_names_are_a_table_with_numbers_at_the_right() -> None:
    records = [Visit("/a", 3.5), Visit("/a/long", 12.0)]
    assert table_of_records(records).splitlines() == [
        "page     seconds",
        "-------  -------",
        "/a           3.5",
        "/a/long     12.0",
    ]
    assert table_of_records([one._asdict() for one in records]) == table_of_records(records)


def test_other_records_have_numbers_or_one_column() -> None:
    assert table_of_records([(1, "a"), (2, "b")]).splitlines()[0].split() == ["_1", "_2"]
    for mixed in ([1, "a"], [(1,), (1, 2)], [{"a": 1}, {"b": 1}], []):
        assert table_of_records(mixed).splitlines()[0].strip() == "value"


def test_a_cell_is_one_line_of_bounded_length() -> None:
    [_, _, *lines] = table_of_records(["two\nlines", "x" * 100, None]).splitlines()
    assert len(lines) == 3 and max(map(len, lines)) == 40
    assert lines[0] == "'two\\nlines'" and lines[1].endswith("…") and lines[2] == "None"
