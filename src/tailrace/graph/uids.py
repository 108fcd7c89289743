"""The uids of operators, under which checkpoints hold their state: given by the user, or derived from the shape of the graph
where the user gives none."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from tailrace.errors import UidError


class Identified(Protocol):
    """A node with a uid."""

    @property
    def uid(self) -> str: ...

    @property
    def uid_given(self) -> bool: ...

    @property
    def name(self) -> str: ...


N = TypeVar("N", bound=Any)
"""A node: a dataclass that is `Identified`."""


def check_uid(uid: object, name: str, others: Iterable[Identified]) -> None:
    """Raises `UidError` for a uid that the user cannot give the operator `name`. `others`: the nodes whose uids no other
    node may have."""
    if not isinstance(uid, str) or not uid or len(uid) > 200:
        raise UidError(f"operator {name!r}: a uid must be a string of 1 to 200 characters, not {uid!r}")
    for node in others:
        if node.uid == uid:
            raise UidError(f"operator {name!r}: the uid {uid!r} is taken by operator {node.name!r}; choose another")


def derived_uid(verb: str, inputs: Iterable[tuple[Identified, int, str | None]], others: Iterable[Identified]) -> str:
    """A uid from the shape of the graph: the verb, the uids of the inputs (each with its port, and the tag of a side
    output), and the number of `others` with both. Names are for users, who may change them without losing state."""
    shape = [verb.partition(":")[0], *(f"{node.uid}/{port}/{tag or ''}" for node, port, tag in inputs)]
    digest = hashlib.sha256("|".join(shape).encode()).hexdigest()[:12]
    taken = Counter(node.uid.partition("#")[0] for node in others)[digest]
    return digest if not taken else f"{digest}#{taken}"


def with_distinct_uids(nodes: Sequence[N]) -> tuple[N, ...]:
    """The nodes of one execution, with different uids. Two nodes can have an equal uid only if one was written after a job
    with the other had ended, and this execution needs both. Raises `UidError` if the user gave that uid."""
    taken: dict[str, N] = {}
    for node in nodes:
        uid, number = node.uid, 0
        while uid in taken:
            if node.uid_given:
                raise UidError(
                    f"operators {taken[uid].name!r} and {node.name!r} have the uid {uid!r}, and this execution needs both: "
                    f"the first one was part of a job that has ended; use that one, or choose another uid for the second"
                )
            number += 1
            uid = f"{node.uid.partition('#')[0]}#{number}"
        taken[uid] = node if uid == node.uid else replace(node, uid=uid)
    return tuple(taken.values())
