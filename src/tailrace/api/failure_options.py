"""Options for records for which user code raises: `on_error=` of verbs, and as the default of an environment; and for the
capsules of failed calls, `capsules=` of an environment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from tailrace.api.checks.arguments import check_name
from tailrace.api.checks.tags import tags_of
from tailrace.api.config import CheckpointConfig, NoRestart, Restart, memory_bytes
from tailrace.elements.batches import Form
from tailrace.elements.durations import Duration, span_seconds
from tailrace.elements.keys import UnsupportedKey, canonical_bytes
from tailrace.errors import ConfigError, GraphError
from tailrace.graph import operators as ops
from tailrace.graph.operators import Operator, describe_selector

FAIL = "fail"
"""The option for a job that fails with its first failed record."""


class Failed(NamedTuple):
    """A record for which user code raised, in a side output of the operator. Each has these fields:

    - `record`: the record as it came to the operator; None where a timer failed.
    - `error`: the exception in one line, such as "ValueError: empty".
    - `where`: the user's line that raised it, or the verb where the line is not in the user's code.
    - `operator`: the name of the operator.
    - `key`: the key of the call; None where there is none.
    - `timer`: the time of the timer that failed, in seconds since 1970; None for a record.
    """

    record: Any
    error: str
    where: str
    operator: str = ""
    key: Any = None
    timer: float | None = None


class ResultFailed(Exception):
    """The error for an aggregate that gives no result of a window. The record at hand is not to blame: the next one would
    find the window as it was, and fail as well."""


@dataclass(frozen=True)
class Aside:
    """A policy by which a record that fails goes to a side output, as a `tr.Failed`, and the job goes on.

    - `tag`: the tag of the side output: `stream.map(f, on_error=tr.Aside("errors")).side_output("errors")`.
    - `at_most`: the largest share of failed records, from 0 to 1. Each subtask counts its own since its start: with a larger
      share the job fails for good, from the subtask's 1,000th record on and at the end of its input. None: any share.

    State changes, timers and emissions of the failed call are undone. Raises `ConfigError` for wrong arguments.
    """

    tag: str = "errors"
    at_most: float | None = None

    def __post_init__(self) -> None:
        try:
            check_name(self.tag, "Aside", "the tag")
        except GraphError as error:
            raise ConfigError(str(error)) from None
        share = self.at_most
        if share is not None and (isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1):
            raise ConfigError(f"Aside: at_most is a share of the records, from 0 to 1, not {share!r}")


@dataclass(frozen=True)
class Retry:
    """A policy by which a call that fails is made again.

    - `attempts`: the largest number of calls for one record, the first one included.
    - `wait`: the time between two calls (seconds, a `timedelta` or a text), for `retry=` of `map_async`. `on_error` takes
      none: a task that waits would hold up all other records behind it.
    - `then`: what becomes of a record whose last call fails as well: "fail" or a `tr.Aside`.

    What a failed call has changed is undone before the next one. Raises `ConfigError` for wrong arguments.
    """

    attempts: int = 3
    wait: Duration = 0.0
    then: str | Aside = FAIL

    def __post_init__(self) -> None:
        if isinstance(self.attempts, bool) or not isinstance(self.attempts, int) or self.attempts < 1:
            raise ConfigError(f"Retry: attempts is a number of calls, at least 1, not {self.attempts!r}")
        try:
            negative = span_seconds(self.wait) < 0
        except (TypeError, OverflowError) as error:
            raise ConfigError(f"Retry: wait: {error}") from None
        if negative:
            raise ConfigError(f"Retry: wait must not be negative, as {self.wait!r} is")
        if self.then != FAIL and not isinstance(self.then, Aside):
            raise ConfigError(f"Retry: then must be 'fail' or a tr.Aside, not {self.then!r}")


class HasKey:
    """A filter of the records that have a key: it raises for the others."""

    def __init__(self, key: Callable[[Any], Any]) -> None:
        self.key = key
        self.__name__ = describe_selector(key)

    def __call__(self, record: Any) -> bool:
        """True. Raises what the key's function raises, and `TypeError` for what can be no key."""
        try:
            canonical_bytes(self.key(record))
        except UnsupportedKey as error:
            raise TypeError(str(error)) from None
        return True


NOTED = Retry(attempts=1)
"""The policy by which a failed call is undone before it fails the job, so that its capsule has what was before it."""
OnError = str | Aside | Retry
"""A policy for records that fail: "fail", an `Aside` or a `Retry`."""

TAKES_POLICY: tuple[type[Operator], ...] = (
    ops.Map,
    ops.Filter,
    ops.FlatMap,
    ops.MapBatches,
    ops.Select,
    ops.FilterColumns,
    ops.ToColumns,
    ops.AssignTimestamps,
    ops.Process,
    ops.KeyedProcess,
    ops.CoProcess,
    ops.BroadcastProcess,
    ops.MapAsync,
    ops.Aggregate,
    ops.Reduce,
    ops.Windowed,
)
"""The kinds of operators that take `on_error`. Aggregates and windows take it in rows; in columns they run no user code."""


NOTING = (ops.Map, ops.Filter, ops.FlatMap, ops.Process, ops.KeyedProcess, ops.CoProcess)
"""The kinds of operators that `NOTED` has an effect on: each of their calls is one record."""


def check_on_error(value: Any, verb: str) -> OnError:
    """The policy, checked. Raises `ConfigError` for what is none, and for one that would wait."""
    if value == FAIL or isinstance(value, Aside):
        return value  # type: ignore[no-any-return]
    if not isinstance(value, Retry):
        raise ConfigError(f"{verb}: on_error must be 'fail', a tr.Aside or a tr.Retry, not {value!r}")
    if span_seconds(value.wait):
        raise ConfigError(
            f"{verb}: on_error=tr.Retry(wait={value.wait!r}) would hold up all records of the subtask while it waits; leave "
            f"wait out, and call a service by map_async(f, retry=tr.Retry(..., wait=...))"
        )
    return value


def takes_policy(operator: Operator, form: Form) -> bool:
    """True if the verb of an operator takes `on_error`. `form` is that of the operator's output."""
    in_columns = form == "columns" and isinstance(operator, ops.Aggregate | ops.Windowed)
    return isinstance(operator, TAKES_POLICY) and not in_columns and not isinstance(operator, ops.DropDuplicates)


def policy_of(operator: Operator, form: Form, given: Any, default: OnError, verb: str) -> OnError:
    """The policy of an operator whose output has this form: the one that its verb was given, else the environment's where
    it takes one. Raises `GraphError` for an operator that takes none, and `ConfigError` for what is no policy."""
    takes = takes_policy(operator, form)
    if given is None:
        return _check_tag(operator, default, verb) if takes else FAIL
    if given == FAIL:
        return FAIL
    if not takes:
        raise GraphError(
            f"{verb}: takes no on_error, because it runs no code of yours for a record{_instead(operator)}"
        )
    return _check_tag(operator, check_on_error(given, verb), verb)


def _check_tag(operator: Operator, policy: OnError, verb: str) -> OnError:
    """The policy, if its side output is none that the operator has. Raises `GraphError`."""
    aside = aside_of(policy)
    if aside is None:
        return policy
    if ops.has_late(operator) and aside.tag == "late":
        raise GraphError(f"{verb}: the side output 'late' has the late records; choose another tag for tr.Aside")
    if isinstance(operator, ops.AssignTimestamps) and operator.most_ahead is not None and aside.tag == ops.AHEAD:
        raise GraphError(
            f"{verb}: the side output 'ahead' has the records of most_ahead; choose another tag for tr.Aside"
        )
    if aside.tag in tags_of(getattr(operator, "fn", None)):
        raise GraphError(f"{verb}: the function emits to {aside.tag!r} itself; choose another tag for tr.Aside")
    return policy


def _instead(operator: Operator) -> str:
    if isinstance(operator, ops.Sink):
        return "; check the record before the sink, with map(f, on_error=...)"
    return (
        "; parse the records behind the source, with map(f, on_error=...)" if isinstance(operator, ops.Source) else ""
    )


def aside_of(policy: OnError) -> Aside | None:
    """The side output of a policy, if it has one."""
    if isinstance(policy, Retry):
        policy = policy.then
    return policy if isinstance(policy, Aside) else None


# Capsules of failed calls.

SECRETS = ("password", "passwd", "secret", "token", "api_key", "apikey", "private_key", "credential", "authorization")
"""Words of names whose values are not shown, by default."""


@dataclass(frozen=True)
class Capsules:
    """Settings for the capsules that a job with checkpoints keeps of failed calls of user code.

    - `keep`: the largest number of capsules of a job; the oldest ones go.
    - `max_bytes`: the largest size of one (a number of bytes or a text such as "4m").
    - `redact`: words; a variable or field whose name contains one of them is shown without its value.
    - `exact`: True: state and record are noted before each call, which takes time. None: only for an operator whose code
      has failed before, and where a job does not start again after a failure (`tr.NoRestart`). False: never.

    Raises `ConfigError` for wrong arguments.
    """

    keep: int = 10
    max_bytes: int | str = "4m"
    redact: tuple[str, ...] = SECRETS
    exact: bool | None = None

    def __post_init__(self) -> None:
        if isinstance(self.keep, bool) or not isinstance(self.keep, int) or self.keep < 1:
            raise ConfigError(f"Capsules: keep is a number of capsules, at least 1, not {self.keep!r}")
        memory_bytes(self.max_bytes)
        if isinstance(self.redact, str) or not all(isinstance(word, str) and word for word in self.redact):
            raise ConfigError(f"Capsules: redact is a tuple of words, not {self.redact!r}")
        if self.exact not in (None, True, False):
            raise ConfigError(f"Capsules: exact must be True, False or None, not {self.exact!r}")

    @property
    def limit(self) -> int:
        """The largest size of a capsule in bytes."""
        return memory_bytes(self.max_bytes)


def capsules_of_job(given: Capsules | None, checkpoint: CheckpointConfig | None, restart: Restart) -> Capsules | None:
    """The settings of a job; None if it keeps no capsules, as one without checkpoints does. A job that does not start again
    after a failure notes each call, unless its program says otherwise: there is no second failure."""
    if given is None or checkpoint is None:
        return None
    return replace(given, exact=True) if given.exact is None and isinstance(restart, NoRestart) else given


def checked_capsules(given: Any) -> Capsules | None:
    """The settings that `capsules=` gives; None if no capsules are kept. Raises `ConfigError` for what is none."""
    if given is True or given is None:
        return Capsules()
    if given is False:
        return None
    if not isinstance(given, Capsules):
        raise ConfigError(f"capsules must be True, False or a tr.Capsules, not {given!r}")
    return given
