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


def test_a_function_of_a_broadcast_stream_has_one_derived_uid_at_every_parallelism() -> None:
    """From several subtasks its records come through one more operator, which brings them into one order."""

    class Known(tr.BroadcastProcessFunction):
        def process(self, value: object, ctx: tr.Context) -> None: ...

        def process_broadcast(self, value: object, ctx: tr.Context) -> None: ...

    def program(parallelism: int) -> list[str]:
        env = tr.Environment(parallelism=parallelism)
        first, second = env.from_source(tr.sources.Sequence(0, 1)), env.from_source(tr.sources.Sequence(0, 2))
        first.connect(second.broadcast()).process(Known()).map(abs)
        return uids(env)

    one, two, three = map(program, (1, 2, 3))
    assert len(two) == len(one) + 1 and two == three
    assert one[-2:] == two[-2:]


def test_a_derived_uid_changes_with_what_is_before_it() -> None:
    env = tr.Environment(parallelism=1)
    numbers = env.from_collection([1])
    assert numbers.map(abs)._upstreams != numbers.filter(abs).map(abs)._upstreams
    assert len(set(uids(env))) == len(uids(env))


def test_twins_are_reported_apart_by_their_order() -> None:
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
    with pytest.raises(tr.UidError, match="operator 'from_collection': a uid must be a string of 1 to 200 characters"):
        tr.Environment(parallelism=1).from_collection([1], uid=uid)


# Several jobs of one environment, as cells of a notebook write them.


class Count(tr.KeyedProcessFunction):
    seen = tr.ValueState(int, default=0)

    def process(self, value: object, ctx: tr.Context) -> list[object]:
        self.seen.value += 1
        return [(ctx.key, self.seen.value)]


def cell(env: tr.Environment, end: int, **uid: str) -> tr.sinks.Collect:
    """What a cell writes; run again, it writes it again."""
    numbers = env.from_source(tr.sources.Sequence(0, end), parallelism=1, **uid)
    return numbers.key_by(lambda n: n % 2).process(Count(), **uid and {"uid": "count"}).sink_to(tr.sinks.Collect())


@pytest.mark.parametrize("uid", [{}, {"uid": "numbers"}], ids=["derived", "given"])
def test_the_uids_of_a_job_that_has_ended_are_free_and_go_on_from_its_state(uid: dict[str, str]) -> None:
    env = tr.Environment(parallelism=1)
    cell(env, 4, **uid)
    tr.testing.run(env)
    first = uids(env)
    cell(env, 6, **uid)
    assert uids(env) == first * 2
    tr.testing.run(env)


def test_the_uids_of_what_is_still_to_run_are_taken() -> None:
    env = tr.Environment(parallelism=1)
    cell(env, 4, uid="numbers")
    with pytest.raises(tr.UidError, match="the uid 'numbers' is taken"):
        cell(env, 4, uid="numbers")
    tr.testing.run(env)
    # A stream of the job that has ended is used once more: its source is to run again.
    again = env.from_collection([1], uid="again")
    again.map(abs).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    again.map(abs).sink_to(tr.sinks.Collect())
    with pytest.raises(tr.UidError, match="the uid 'again' is taken"):
        env.from_collection([1], uid="again")


def test_the_uids_of_a_running_job_are_taken() -> None:
    class Running:
        is_active = True

    env = tr.Environment(parallelism=1)
    cell(env, 4, uid="numbers")
    sinks = env._pending()
    job = Running()
    env._note_start(job, sinks, env._plan(sinks))
    with pytest.raises(tr.UidError, match="the uid 'numbers' is taken"):
        cell(env, 4, uid="numbers")
    job.is_active = False
    cell(env, 4, uid="numbers")


def test_an_execution_that_needs_two_operators_of_one_uid_is_refused() -> None:
    """The first one is of a job that has ended, so the second one could be written; both in one job have no place."""
    env = tr.Environment(parallelism=1)
    first = env.from_collection([1], uid="numbers")
    first.sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    second = env.from_collection([2], uid="numbers")
    first.union(second).sink_to(tr.sinks.Collect())
    with pytest.raises(tr.UidError, match="have the uid 'numbers', and this execution needs both"):
        tr.testing.run(env)


def test_derived_uids_of_one_execution_differ_also_where_a_job_has_ended_between_them() -> None:
    env = tr.Environment(parallelism=1)
    numbers = env.from_collection([3])
    first = numbers.map(abs)
    first.sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    second = numbers.map(lambda n: n + 1)
    out = first.union(second).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert sorted(out.result()) == [3, 4]


def test_what_was_written_is_explained_also_when_all_of_it_has_run() -> None:
    env = tr.Environment(parallelism=1)
    cell(env, 4, uid="numbers")
    tr.testing.run(env)
    assert env.explain().count("uid=numbers") == 1
    cell(env, 4, uid="numbers")
    assert env.explain().count("uid=numbers") == 1
