"""Joins of two keyed streams, as users write them.

In: two streams with keys, and the arguments of a join. Out: the nodes that it consists of, or an error where it is written.

- `writing`: checks of the arguments, and the operators that are added.
- `functions`: functions that these operators call.
- `changes`: the join of two tables that come as changes.
"""

from tailrace.api.joins.changes import write_changes as write_changes
from tailrace.api.joins.writing import late_of_windows as late_of_windows
from tailrace.api.joins.writing import write_as_of as write_as_of
from tailrace.api.joins.writing import write_co_group as write_co_group
from tailrace.api.joins.writing import write_join as write_join
from tailrace.state.ttl import Ttl as Ttl
