"""Settings and their checks. A setting of a planned feature raises `ConfigError`; it never means something else."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from tailrace.api.spill import CHECKPOINT, Spill
from tailrace.elements.durations import WANTED, Duration, span_micros
from tailrace.errors import ConfigError
from tailrace.passwords import hides_passwords
from tailrace.spelling import with_hints

MODES = ("aligned", "unaligned-max-inflight", "unaligned")
PERSIST = ("ad-hoc", "continuous")
ALIGNMENT_TIMEOUT = 10.0
"""Seconds after which an aligned checkpoint goes on unaligned, where the user sets no `alignment_timeout`
(docs/decisions/0065-aligned-for-ten-seconds.md)."""
_UNITS = {"": 1, "b": 1} | {f"{'kmg'[n]}{end}": 1024 << 10 * n for n in range(3) for end in ("", "b", "ib")}


def span(value: Any, what: str) -> int:
    """A duration (seconds, a `timedelta` or a text such as `"5 minutes"`) as int microseconds. Raises `ConfigError`."""
    try:
        found = span_micros(value)
    except (TypeError, OverflowError) as error:
        raise ConfigError(f"{what} must be {WANTED}, not {value!r}") from error
    if found < 0:
        raise ConfigError(f"{what} must not be negative, as {value!r} is")
    return found


def _is_whole(value: Any, least: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _whole(value: Any, what: str) -> None:
    if not _is_whole(value):
        raise ConfigError(f"{what} must be a whole number of at least 0, not {value!r}")


@with_hints
@hides_passwords
@dataclass(frozen=True)
class CheckpointConfig:
    """The settings of a job's checkpoints: when it takes them, where they are, and how many it keeps.

    Every duration is a number of seconds, a `timedelta` or a text (`"5 minutes"`).

    - `dir`: a folder or a URL (`s3a://…`, `hdfs://…`, `gs://…`, `abfss://…`) that the driver and every executor reach.
    - `interval`: the time from one trigger to the next. With None the job takes checkpoints only on request.
    - `timeout`: a checkpoint that takes longer is aborted.
    - `min_pause`: the least time from the end of one checkpoint to the trigger of the next.
    - `max_concurrent`: the maximum number of checkpoints under way at a time.
    - `keep`: the number of complete checkpoints that the job keeps while it runs, the newest ones.
    - `retain`: whether they outlive the job: "on-cancellation" (also after a failure, not after a good end), "never" or
      "always".
    - `keep_runs`: the number of earlier runs (the newest that have left a checkpoint, or their end) whose remains the job
      keeps at its start. It also keeps the run that it goes on from, and removes the others. With None it removes nothing.
    - `tolerated_failures`: the number of checkpoints in a row that may fail before the job fails.
    - `storage_options`: options of the filesystem (fsspec).
    - `storage_patience`: the time for which the job tries again while the storage of checkpoints or of a sink of files is
      out of reach; then it fails.
    - `mode`: what a barrier does where records wait. "aligned": it waits its turn, and a checkpoint takes as long as the
      job is behind. "unaligned": it goes past them, and they are written into the checkpoint (FLIP-76).
      "unaligned-max-inflight": it goes past them if at most `max_inflight_bytes` bytes of them wait at the inputs of a
      subtask, and at most as many at its outputs; else it waits until enough has been read. Records in flight that were
      restored from a checkpoint do not count.
    - `alignment_timeout`: a duration. Checkpoints of every mode begin aligned, and go on unaligned if that takes longer.
      "auto": 10 seconds with mode="aligned", none with the others. None: those never do so, and these are unaligned at once.
    - `persist_inflight`: when waiting records are written. "ad-hoc": once a checkpoint has found them. "continuous": all
      the time, into the file of the next checkpoint; the checkpoint takes less time then, and more is written.

    Raises `ConfigError` for a setting that is wrong or not in this version.
    """

    dir: str
    interval: Any = 1.0
    mode: str = "aligned"
    max_inflight_bytes: int = 64 << 20
    alignment_timeout: Any = "auto"
    timeout: Any = 600.0
    min_pause: Any = 0.0
    max_concurrent: int = 1
    keep: int = 3
    retain: str = "on-cancellation"
    persist_inflight: str = "ad-hoc"
    tolerated_failures: int = 10
    storage_options: dict[str, Any] | None = field(default=None, repr=False)
    storage_patience: Any = 600.0
    keep_runs: int | None = None

    @property
    def overtakes(self) -> bool:
        """True if barriers may go past records that wait, at once or after a time."""
        return self.mode != "aligned" or self.aligns_for is not None

    @property
    def aligns_for(self) -> Any:
        """The duration after which a checkpoint goes on unaligned; None: never with mode="aligned", else at once."""
        if self.alignment_timeout != "auto":
            return self.alignment_timeout
        return ALIGNMENT_TIMEOUT if self.mode == "aligned" else None

    @property
    def writes_ahead(self) -> bool:
        """True if records that wait are written before a checkpoint finds them."""
        return self.persist_inflight == "continuous"

    def __post_init__(self) -> None:
        if hasattr(self.dir, "__fspath__"):
            object.__setattr__(self, "dir", self.dir.__fspath__())
        if not isinstance(self.dir, str) or not self.dir:
            raise ConfigError(f"CheckpointConfig: dir must be a folder or a URL, not {self.dir!r}")
        if self.interval is not None and span(self.interval, "CheckpointConfig: interval") <= 0:
            raise ConfigError(
                f"CheckpointConfig: interval must be more than zero seconds, or None, not {self.interval!r}"
            )
        if span(self.timeout, "CheckpointConfig: timeout") <= 0:
            raise ConfigError(f"CheckpointConfig: timeout must be more than zero seconds, not {self.timeout!r}")
        span(self.min_pause, "CheckpointConfig: min_pause")
        span(self.storage_patience, "CheckpointConfig: storage_patience")
        for name, least in (("max_concurrent", 1), ("keep", 1), ("tolerated_failures", 0)):
            value = getattr(self, name)
            if not _is_whole(value, least):
                raise ConfigError(f"CheckpointConfig: {name} must be a whole number of at least {least}, not {value!r}")
        if self.keep_runs is not None and not _is_whole(self.keep_runs, 1):
            raise ConfigError(
                f"CheckpointConfig: keep_runs must be a whole number of at least 1, or None, not {self.keep_runs!r}"
            )
        if self.storage_options is not None and not isinstance(self.storage_options, Mapping):
            kind = type(self.storage_options).__name__  # not the value: it may be secret
            raise ConfigError(f"CheckpointConfig: storage_options must be a dict, or None, not a {kind}")
        if self.retain not in ("never", "on-cancellation", "always"):
            raise ConfigError(
                f"CheckpointConfig: retain must be 'never', 'on-cancellation' or 'always', not {self.retain!r}"
            )
        if self.mode not in MODES:
            raise ConfigError(
                f"CheckpointConfig: mode must be 'aligned', 'unaligned-max-inflight' or 'unaligned', not {self.mode!r}"
            )
        _whole(self.max_inflight_bytes, "CheckpointConfig: max_inflight_bytes")
        if self.alignment_timeout not in (None, "auto"):
            span(self.alignment_timeout, "CheckpointConfig: alignment_timeout")
        if self.persist_inflight not in PERSIST:
            raise ConfigError(
                f"CheckpointConfig: persist_inflight must be 'ad-hoc' or 'continuous', not {self.persist_inflight!r}"
            )
        if self.writes_ahead and not self.overtakes:
            raise ConfigError(
                "CheckpointConfig: persist_inflight='continuous' writes records that barriers go past, and with "
                "mode='aligned' and alignment_timeout=None they never do; set mode='unaligned', or an alignment_timeout"
            )


@with_hints
@dataclass(frozen=True)
class NoRestart:
    """No restarts: a job that fails stays failed."""


@with_hints
@dataclass(frozen=True)
class FixedDelay:
    """At most `attempts` restarts over the life of the job, each after `delay` (seconds, a `timedelta` or a text).

    Raises `ConfigError` for a wrong setting."""

    attempts: int = 3
    delay: Any = 1.0

    def __post_init__(self) -> None:
        _whole(self.attempts, "FixedDelay: attempts")
        span(self.delay, "FixedDelay: delay")


@with_hints
@dataclass(frozen=True)
class ExponentialDelay:
    """Restarts after pauses that grow from `initial` by the factor `multiplier` to at most `maximum`. The pause is
    `initial` again once the job ran for `reset_after` without a failure. At most `attempts` restarts in such a row; None:
    no limit. Durations are seconds, a `timedelta` or a text.

    Raises `ConfigError` for a wrong setting."""

    initial: Any = 1.0
    maximum: Any = 60.0
    multiplier: float = 2.0
    reset_after: Any = 3600.0
    attempts: int | None = None

    def __post_init__(self) -> None:
        for name in ("initial", "maximum", "reset_after"):
            span(getattr(self, name), f"ExponentialDelay: {name}")
        if not isinstance(self.multiplier, int | float) or not 1 <= self.multiplier < math.inf:
            raise ConfigError(f"ExponentialDelay: multiplier must be a number of at least 1, not {self.multiplier!r}")
        if self.attempts is not None:
            _whole(self.attempts, "ExponentialDelay: attempts")


@with_hints
@dataclass(frozen=True)
class FailureRate:
    """Restarts, each after `delay`, as long as there are at most `failures` failures within `interval`. Both durations are
    seconds, a `timedelta` or a text.

    Raises `ConfigError` for a wrong setting."""

    failures: int = 3
    interval: Any = 300.0
    delay: Any = 1.0

    def __post_init__(self) -> None:
        _whole(self.failures, "FailureRate: failures")
        span(self.interval, "FailureRate: interval")
        span(self.delay, "FailureRate: delay")


INFLIGHT = ("local", CHECKPOINT)
COMPARE = ("values", "shape")
STANDBY_MODES = ("warm", "hot")
PACE = 3_000
"""Microseconds for which a hot standby lets its worker gather, if the user gives no `pace`."""
MOST_HISTORY = 768 << 20
"""The largest `history_bytes`, as a message between coordinator and worker has a limit, too."""
MIRRORED = 4
"""Number of workers that one standby process mirrors."""


@with_hints
@dataclass(frozen=True)
class StandbyConfig:
    """The settings by which a job replaces a lost worker while the other workers go on. The replacement restores the newest
    checkpoint, and does again what the lost worker did after it. Needs checkpoints.

    - `replicas`: the number of standby processes that hold the state of each worker. They have everything imported and the
      keyed state as of the newest checkpoint. With 0 the job starts a process when a worker is lost.
    - `spares`: the number of standby processes; None: `replicas` for every four workers, and for as many workers as an
      executor has task slots. Each takes a task slot of Spark. If Spark has no slots for them, the job runs without, logs
      it, and starts them when there are slots.
    - `spill`: a `tr.Spill`. Each worker keeps the records that it has sent to other workers since the newest checkpoint;
      `spill` bounds how much of them is in memory. The rest is in files of the worker's machine, or with
      `tr.Spill(dir="checkpoint")` in the storage of checkpoints, for machines with little disk. Either way only the worker
      that wrote these files reads them: its replacement makes the records again.
    - `inflight`: "local", or "checkpoint", which is another name for `spill=tr.Spill(dir="checkpoint")`.
    - `depth`: the number of executors whose workers may be lost at once while the other workers go on. With 1 each worker
      sends the other workers its own history and those of the workers in its executor; with 2 also the histories that it
      received from their own executors; with more, all that it knows. A worker whose executor is not known, as in local
      mode, counts as one in an executor of its own. If a loss is not covered, the whole job restarts, and the log has the
      reason.
    - `history_bytes`: the maximum size of the history of each worker since the newest checkpoint, at most 768 MiB. At half
      of it a checkpoint is taken early. If the history exceeds it, it is dropped, and a loss of this worker is a restart
      until the next checkpoint is complete. Each worker, and the coordinator, also holds the histories of other workers: up
      to `history_bytes` in memory, for all of them together, and the rest in files of its machine.
    - `compare`: how much a replacement compares of what it makes with what the other workers have received. With "values"
      the number, event times, keys and values of the records; with "shape" values only where there are no keys. If
      anything differs, the whole job restarts, and the cause names the operator. The values of classes that have no certain
      form are not compared; a warning names the operators.
    - `mode`: what standbys do. With "warm" they hold the state as of the newest checkpoint. With "hot" each worker has a
      standby of its own, which also does what the worker does, a little behind it and without any effect; when it
      takes the worker's place, it has only the rest to do. That takes processor time (`pace`), and the state twice in
      the memory of each standby. `replicas` and `spares` do not go with it.
    - `pace`: how long a hot standby lets its worker gather what it is to do; None: 3 ms. More of it is more to do when the
      worker is lost, and takes less processor time: much together is done sooner than step by step. At most half the
      interval of checkpoints counts.

    Raises `ConfigError` for a setting that is wrong or not in this version.
    """

    replicas: int = 1
    inflight: str = "local"
    spares: int | None = None
    depth: int = 1
    spill: Spill = Spill()  # noqa: RUF009 - it is frozen
    history_bytes: int = 256 << 20
    compare: str = "values"
    mode: str = "warm"
    pace: Any = None

    def __post_init__(self) -> None:
        if self.mode not in STANDBY_MODES:
            raise ConfigError(f"StandbyConfig: mode must be 'warm' or 'hot', not {self.mode!r}")
        if self.mode == "hot" and (self.replicas != 1 or self.spares is not None):
            raise ConfigError(
                "StandbyConfig: with mode='hot' each worker has one standby of its own; leave replicas and spares out, or "
                "set mode='warm'"
            )
        if self.pace is not None:
            span(self.pace, "StandbyConfig: pace")
            if self.mode != "hot":
                raise ConfigError("StandbyConfig: pace is for hot standbys; set mode='hot', or leave pace out")
        _whole(self.history_bytes, "StandbyConfig: history_bytes")
        if self.history_bytes == 0:
            raise ConfigError(
                "StandbyConfig: history_bytes=0 would replace nobody; leave `standby` out, or give some MiB"
            )
        if self.history_bytes > MOST_HISTORY:
            raise ConfigError(
                f"StandbyConfig: history_bytes={self.history_bytes:,} is too much: a replacement is sent a history in one "
                f"message, of 768 MiB at most; take checkpoints more often"
            )
        _whole(self.replicas, "StandbyConfig: replicas")
        _whole(self.depth, "StandbyConfig: depth")
        if self.depth == 0:
            raise ConfigError("StandbyConfig: depth=0 would replace nobody; leave `standby` out, or set depth=1")
        if self.spares is not None:
            _whole(self.spares, "StandbyConfig: spares")
            if (self.spares < self.replicas) or (self.spares > 0 and self.replicas == 0):
                raise ConfigError(
                    f"StandbyConfig: spares={self.spares} processes cannot stand by for {self.replicas} replicas: two "
                    f"replicas of a worker are in two processes, and without replicas there are none"
                )
        if not isinstance(self.spill, Spill):
            raise ConfigError(f"StandbyConfig: spill must be a tr.Spill, not {self.spill!r}")
        if self.inflight not in INFLIGHT:
            raise ConfigError(f"StandbyConfig: inflight must be 'local' or 'checkpoint', not {self.inflight!r}")
        if self.compare not in COMPARE:
            raise ConfigError(f"StandbyConfig: compare must be 'values' or 'shape', not {self.compare!r}")
        if self.inflight == CHECKPOINT and self.spill.folder is not None:
            raise ConfigError(
                f"StandbyConfig: spill has the folder {self.spill.dir!r}, and with inflight='checkpoint' files are in the "
                f"storage of checkpoints; leave dir out, or set inflight='local'"
            )
        if CHECKPOINT in (self.inflight, self.spill.dir):  # one setting with two names
            object.__setattr__(self, "inflight", CHECKPOINT)
            object.__setattr__(self, "spill", replace(self.spill, dir=CHECKPOINT))

    def pace_micros(self, interval: Any) -> int:
        """The pace of hot standbys in microseconds, with checkpoints at this interval (None: only on request). A standby
        that lets its worker gather for longer does not follow from one checkpoint to the next."""
        pace = PACE if self.pace is None else span_micros(self.pace)
        return pace if interval is None else min(pace, span_micros(interval) // 2)

    def processes(self, workers: int, executor_slots: int = 0) -> int:
        """The number of standby processes for a job with this number of workers. `executor_slots`: the task slots of an
        executor, so many workers may be lost at once; 0 where that is not known."""
        if self.spares is not None:
            return self.spares
        if self.mode == "hot":
            return workers
        return self.replicas * max(-(-workers // MIRRORED), min(workers, executor_slots))


Restart = NoRestart | FixedDelay | ExponentialDelay | FailureRate
RESTARTS = (NoRestart, FixedDelay, ExponentialDelay, FailureRate)
DEFAULT_RESTART = ExponentialDelay(initial=0.1, maximum=60.0, multiplier=2.0, reset_after=600.0, attempts=20)
"""The restart strategy of a job with checkpoints if the user gives none. The job survives a loss now and then, and an
outage of about ten minutes. An error that comes again at each attempt fails the job after that time."""


@with_hints
@dataclass(frozen=True)
class Elastic:
    """The parallelism of a job that goes on with the task slots that there are: `Environment(parallelism=tr.Elastic(1, 8))`.

    It begins with as many workers as Spark has slots for, from `least` to `most`. Where workers are lost and Spark has no
    slots for others within `wait` (seconds, a `timedelta` or a text), it goes on from its newest checkpoint with those that
    are there. When there are slots again, it grows. With fewer workers than `least` it waits for `slot_timeout`, and fails.
    Needs checkpoints. Operators with a parallelism of their own keep it, so none may be above `least`.

    Raises `ConfigError` for a setting that is wrong.
    """

    least: int
    most: int
    wait: Duration = 10.0

    def __post_init__(self) -> None:
        for name, count in (("least", self.least), ("most", self.most)):
            if not isinstance(count, int) or isinstance(count, bool):
                raise ConfigError(f"Elastic: {name} must be a whole number of workers, not {count!r}")
        if not 1 <= self.least <= self.most:
            raise ConfigError(
                f"Elastic: expected 1 <= least <= most, not least={self.least} and most={self.most}; for a fixed size give "
                f"parallelism={max(1, self.most)}"
            )
        if span(self.wait, "Elastic: wait") <= 0:
            raise ConfigError(f"Elastic: wait must be above zero, not {self.wait!r}")


@with_hints
@dataclass(frozen=True)
class Autoscale:
    """The settings by which the load of an elastic job decides how many workers it has, within its `tr.Elastic`.

    - `target_busy`: the share of their time that workers are to be busy, above 0 and at most 1.
    - `lag`: the lag of a source (seconds, a `timedelta` or a text) that is tolerated. Above it the job gets more workers,
      enough to catch up in about as much time. Sources that know their lag are Kafka, followed files, and those with a
      reader that has `lag`.
    - `cooldown`: the time over which the load is measured, and that passes from one change to the next, at least. The job
      gets fewer workers when these would have been enough through five times as much.

    Raises `ConfigError` for a setting that is wrong.
    """

    target_busy: float = 0.7
    lag: Duration = 30.0
    cooldown: Duration = 30.0

    def __post_init__(self) -> None:
        share = self.target_busy
        if not isinstance(share, int | float) or isinstance(share, bool) or not 0 < share <= 1:
            raise ConfigError(f"Autoscale: target_busy must be above 0 and at most 1, not {share!r}")
        for name, given in (("lag", self.lag), ("cooldown", self.cooldown)):
            if span(given, f"Autoscale: {name}") <= 0:
                raise ConfigError(f"Autoscale: {name} must be above zero, not {given!r}")


@hides_passwords
@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint: its number, the path for `from_checkpoint`, its duration in seconds, and the bytes that were
    written for it. `details` has the parts of the duration in seconds (trigger, alignment, freeze, write), and the bytes
    together with its parts in earlier checkpoints. `policy` says how it ended: "aligned", or "unaligned" if barriers have
    overtaken records. `inflight_bytes` counts records on their way around loops and records that barriers have overtaken;
    `inflight` has the latter by the uid of the operator that was to receive them. Of `inflight_bytes`,
    `inflight_referred_bytes` were written by an earlier checkpoint, and this one only refers to them."""

    id: int
    path: str
    duration: float
    bytes: int
    inflight_bytes: int = 0
    timestamp: float = 0.0
    details: dict[str, float] = field(default_factory=dict)
    policy: str = "aligned"
    inflight: dict[str, int] = field(default_factory=dict)
    inflight_referred_bytes: int = 0

    def __fspath__(self) -> str:
        """The path, so that a checkpoint may be given where its path is expected."""
        return self.path


@hides_passwords
@dataclass(frozen=True)
class Savepoint(Checkpoint):
    """A savepoint: a checkpoint in a folder of its own, `path`, which holds all that is needed to start from it. The folder
    may be moved and copied; no job deletes it. `bytes` is the size of its files, and `duration` the seconds until all of
    them were written."""


def memory_bytes(value: int | str) -> int:
    """A memory size in bytes, from bytes or a text such as `"512m"` or `"1g"`. Raises `ConfigError` for anything else, and
    for less than 1 MiB."""
    if isinstance(value, int) and not isinstance(value, bool):
        size = value
    else:
        found = re.fullmatch(r"\s*(\d+)\s*([a-zA-Z]*)\s*", value) if isinstance(value, str) else None
        if found is None or found[2].lower() not in _UNITS:
            raise ConfigError(f"memory must be a number of bytes or a string such as '512m' or '1g', not {value!r}")
        size = int(found[1]) * _UNITS[found[2].lower()]
    if size < 1 << 20:
        raise ConfigError(f"memory must be at least 1m, not {value!r}")
    return size


def checked_settings(checkpoint: Any, restart: Any, standby: Any) -> tuple[CheckpointConfig | None, Restart]:
    """The checkpoint settings and the restart strategy of an environment, checked together with its standby settings.
    Raises `ConfigError` for wrong ones."""
    if checkpoint is not None and not isinstance(checkpoint, CheckpointConfig):
        # Not the value: it may be secret.
        shown = repr(checkpoint) if isinstance(checkpoint, str) else f"a {type(checkpoint).__name__}"
        raise ConfigError(f'checkpoint must be a tr.CheckpointConfig(dir="…"), not {shown}')
    if standby is not None and not isinstance(standby, StandbyConfig):
        raise ConfigError(f"standby must be a tr.StandbyConfig, not {standby!r}")
    if restart is not None and not isinstance(restart, RESTARTS):
        names = ", ".join(f"tr.{one.__name__}" for one in RESTARTS)
        raise ConfigError(f"restart must be one of {names}, not {restart!r}")
    if restart is None:
        restart = NoRestart() if checkpoint is None else DEFAULT_RESTART
    return checkpoint, restart


class Sizing(NamedTuple):
    """The settings of a job that changes its size by itself."""

    elastic: Elastic
    autoscale: Autoscale | None


def checked_sizing(parallelism: Any, autoscale: Any, checkpoints: bool, most: int) -> Sizing | None:
    """The settings of an environment for other sizes, checked: its `parallelism`, and the parallelism that no job is above.
    None where it has one size. Raises `ConfigError`."""
    if autoscale is not None and not isinstance(autoscale, Autoscale):
        raise ConfigError(f"autoscale must be a tr.Autoscale, not {autoscale!r}")
    if not isinstance(parallelism, Elastic):
        if autoscale is None:
            return None
        raise ConfigError(
            "autoscale needs bounds: give the Environment parallelism=tr.Elastic(least, most) (on the command line: "
            "--parallelism LEAST-MOST)"
        )
    if parallelism.most > most:
        raise ConfigError(f"Elastic: most must be at most max_parallelism ({most}), not {parallelism.most}")
    if not checkpoints:
        raise ConfigError(
            "parallelism=tr.Elastic(...): a job takes another size from a checkpoint: give the Environment "
            'checkpoint=tr.CheckpointConfig(dir="…") (on the command line: --checkpoint-dir DIR)'
        )
    return Sizing(parallelism, autoscale)
