"""The name under which pickles refer to the maker of a row: keys and state in checkpoints hold it (decision 33)."""

from tailrace.elements.rows import _make_row as _make_row
