"""Dataflows that are refused where they are written."""

from typing import Any

import pytest

import tailrace as tr


def refusal(case: tuple[Any, ...], env: tr.Environment) -> str:
    """The message with which a dataflow is refused. `case`: what writes the dataflow, the class of its error if that is
    not `GraphError` itself, and the message that a table expects."""
    write, *others, _ = case
    [kind] = others or [tr.GraphError]
    with pytest.raises(kind) as raised:
        write(env)
    assert type(raised.value) is kind
    return str(raised.value)
