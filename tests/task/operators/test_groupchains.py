"""Which files hold each key group, as checkpoints come, are confirmed, or are given up."""

import pytest

from tailrace.errors import InternalError
from tailrace.task.operators.groupchains import GroupChains


def test_a_group_that_was_written_as_a_whole_begins_a_chain_and_changes_go_on_it() -> None:
    chains = GroupChains()
    assert chains.extend(1, "one", [4, 5], [], {4, 5})[0] == {4: ("one",), 5: ("one",)}
    chains.confirm(1)
    assert chains.extend(2, "two", [], [5], {5})[0] == {4: ("one",), 5: ("one", "two")}
    chains.confirm(2)
    assert chains.extend(3, "three", [5], [4], {4, 5})[0] == {4: ("one", "three"), 5: ("three",)}


def test_a_group_that_was_written_as_a_whole_and_has_nothing_is_in_no_file() -> None:
    chains = GroupChains()
    chains.extend(1, "one", [4], [], {4})
    chains.confirm(1)
    assert chains.extend(2, "two", [4, 9], [], set())[0] == {}


def test_only_files_of_complete_checkpoints_are_built_on() -> None:
    chains = GroupChains()
    chains.extend(1, "one", [4], [], {4})
    chains.confirm(1)
    chains.extend(2, "two", [], [4], {4})
    assert chains.extend(3, "three", [], [4], {4})[0] == {4: ("one", "three")}, "2 may never be complete"
    chains.abort(2)
    chains.confirm(3)
    assert chains.confirmed == {4: ("one", "three")}


def test_what_is_confirmed_makes_older_ones_nobodys_business() -> None:
    chains = GroupChains()
    chains.extend(1, "one", [4], [], {4})
    chains.extend(2, "two", [4], [], {4})
    chains.confirm(2)
    chains.confirm(1)
    assert chains.confirmed == {4: ("two",)}


def test_a_checkpoint_of_which_nothing_was_encoded_here_confirms_nothing() -> None:
    chains = GroupChains()
    chains.extend(1, "one", [4], [], {4})
    chains.confirm(1)
    chains.confirm(7)
    chains.abort(8)
    assert chains.confirmed == {4: ("one",)}


def test_the_answer_is_a_copy() -> None:
    chains = GroupChains()
    chains.extend(1, "one", [4], [], {4})[0][5] = ("nonsense",)
    chains.confirm(1)
    chains.extend(2, "two", [], [4], {4})
    assert chains.confirmed[4] == ("one",)


def test_what_changed_in_a_group_that_was_empty_before_is_the_whole_group() -> None:
    """Checkpoint 3 was cut while 2 was pending, so the backend took the chain of 1 for the confirmed one and wrote what
    had changed since. Then 2 became complete, and had found the group empty: its chain begins with 3, and no file was
    recorded as holding the group as a whole. The checkpoint was complete and could not be restored."""
    chains = GroupChains()
    chains.extend(1, "one", [4, 5], [], {4, 5})
    chains.confirm(1)
    chains.extend(2, "two", [4], [], set())
    chains.confirm(2)
    assert chains.extend(3, "three", [], [4, 5], {4, 5}) == ({4: ("three",), 5: ("one", "three")}, [4])


def test_a_chain_that_does_not_begin_with_the_whole_group_is_a_bug() -> None:
    chains = GroupChains()
    chains.extend(1, "one", [4], [], {4})
    chains.confirm(1)
    chains.check("two", {4: ("one", "two"), 5: ("two",)}, {5}, {4, 5})
    with pytest.raises(InternalError, match="does not begin with the whole group"):
        chains.check("two", {5: ("two",)}, {4}, {5})
    with pytest.raises(InternalError, match="does not begin with the whole group"):
        chains.check("two", {4: ("other", "two")}, set(), {4})
    with pytest.raises(InternalError, match="has nothing of it"):
        chains.check("two", {4: ("one", "two")}, set(), {5})
