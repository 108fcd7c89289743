"""A uid is the identity of an operator's state across versions of a program."""

import pytest

import tailrace as tr


def uids(env: tr.Environment) -> list[str]:
    return [node.uid for node in env._graph.nodes]


def test_a_given_uid_is_taken_as_it_is() -> None:
    env = tr.Environment(parallelism=1)
    env.from_collection([1], uid="numbers").map(abs, uid="positive").sink_to(tr.sinks.Print(), uid="out")
    assert uids(env) == ["numbers", "positive", "out"]


def test_a_derived_uid_does_not_change_with_the_name_the_function_or_the_parallelism() -> None:
    def program(function: object, **options: object) -> list[str]:
        env = tr.Environment(parallelism=1)
        env.from_collection([1]).map(function, **options).key_by(abs).count()  # type: ignore[arg-type]
        return uids(env)

    assert program(abs) == program(lambda x: x, name="another name", parallelism=2)


def test_a_derived_uid_changes_with_what_is_before_it() -> None:
    env = tr.Environment(parallelism=1)
    numbers = env.from_collection([1])
    assert numbers.map(abs)._upstreams != numbers.filter(abs).map(abs)._upstreams
    assert len(set(uids(env))) == len(uids(env))


def test_twins_are_told_apart_by_their_order() -> None:
    env = tr.Environment(parallelism=1)
    numbers = env.from_collection([1])
    for _ in range(3):
        numbers.map(abs)
    _, first, second, third = uids(env)
    assert (second, third) == (f"{first}#1", f"{first}#2")


def test_a_uid_belongs_to_one_operator() -> None:
    env = tr.Environment(parallelism=1)
    numbers = env.from_collection([1], uid="mine")
    with pytest.raises(tr.UidError, match="operator 'second': the uid 'mine' is taken by operator 'from_collection'"):
        numbers.map(abs, name="second", uid="mine")


@pytest.mark.parametrize("uid", ["", "x" * 201, 5, b"x"])
def test_a_uid_is_a_text_of_some_length(uid: object) -> None:
    with pytest.raises(tr.UidError, match="operator 'from_collection': a uid is a text of 1 to 200 characters"):
        tr.Environment(parallelism=1).from_collection([1], uid=uid)
