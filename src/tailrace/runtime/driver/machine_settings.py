"""Settings of users, in the units of the machines."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from tailrace.api.config import CheckpointConfig, ExponentialDelay, FailureRate, FixedDelay, Restart, Sizing
from tailrace.api.restore.compatibility import check_manifest
from tailrace.coordinator.durability.checkpoints import CheckpointSettings
from tailrace.coordinator.job.restarts import Exponential, Fixed, Never, Rate, Strategy
from tailrace.coordinator.job.timeouts import Limits
from tailrace.coordinator.loops.termination import NestSpec
from tailrace.coordinator.output.origin import NOTHING, StartFrom
from tailrace.coordinator.workers.autoscaling import ScaleSettings
from tailrace.coordinator.workers.rescaling import ElasticSizes, JobSize
from tailrace.elements.durations import span_micros
from tailrace.errors import IncompatibleState
from tailrace.graph.plan import Plan
from tailrace.state.end_mark import Dataflow
from tailrace.state.manifest import Manifest
from tailrace.storage.origins import Origin
from tailrace.storage.store import Store


def settings_of(config: CheckpointConfig, folder: str = "", dataflow: Dataflow = ()) -> CheckpointSettings:
    """Checkpoint settings for a coordinator; `folder` is the URL of the job's folder, `dataflow` what it runs."""
    return CheckpointSettings(
        interval=None if config.interval is None else span_micros(config.interval),
        timeout=span_micros(config.timeout),
        min_pause=span_micros(config.min_pause),
        max_concurrent=config.max_concurrent,
        tolerated_failures=config.tolerated_failures,
        keep=config.keep,
        keep_runs=config.keep_runs or 0,
        overtakes_after=_overtakes_after(config),
        most_inflight=config.max_inflight_bytes if config.mode == "unaligned-max-inflight" else -1,
        ahead=config.writes_ahead,
        origin=folder,
        retain=config.retain,
        dataflow=dataflow,
    )


def limits_of(config: CheckpointConfig | None, slot_timeout: float, notice: float, publish: float) -> Limits:
    """Time limits of a coordinator. `slot_timeout`: for its slots, and `notice` more at a restart. `publish`: for output to
    become visible. All in seconds."""
    limits = Limits(
        slots=int(slot_timeout * 1_000_000), notice=int(notice * 1_000_000), publish=int(publish * 1_000_000)
    )
    return limits if config is None else replace(limits, patience=span_micros(config.storage_patience))


def _overtakes_after(config: CheckpointConfig) -> int:
    """Microseconds after which barriers of a checkpoint overtake records; -1: never."""
    if not config.overtakes:
        return -1
    return 0 if config.aligns_for is None else span_micros(config.aligns_for)


def start_from(origin: Origin | None, store: Store | None) -> StartFrom:
    """The checkpoint that a run starts from, for a coordinator; `store` is the folder of its job, if it has one."""
    if origin is None:
        return NOTHING
    return StartFrom(origin.manifest, origin.folder, origin.own_path(store), origin.before(store), origin.is_needed)


def strategy_of(restart: Restart) -> Strategy:
    """A restart strategy for a coordinator."""
    if isinstance(restart, FixedDelay):
        return Fixed(restart.attempts, span_micros(restart.delay))
    if isinstance(restart, ExponentialDelay):
        return Exponential(
            span_micros(restart.initial),
            span_micros(restart.maximum),
            float(restart.multiplier),
            span_micros(restart.reset_after),
            restart.attempts,
        )
    if isinstance(restart, FailureRate):
        return Rate(restart.failures, span_micros(restart.interval), span_micros(restart.delay))
    return Never()


def nests_of(plan: Plan) -> tuple[NestSpec, ...]:
    """The loop nests of a plan, as the coordinator needs them."""
    return tuple(
        NestSpec(nest.slots, *((None, False) if nest.rounds is None else (nest.rounds.max, True, nest.rounds.span)))
        for nest in plan.nests
    )


def size_of(plan: Plan, bytes_of: bytes, text: str, allow: bool | Collection[str] = False) -> JobSize:
    """The size of a job that its coordinator gives it with this plan. `allow`: operators whose state may be dropped."""

    def fits(manifest: Manifest) -> str:
        try:
            check_manifest(manifest, plan.graph, allow)
        except IncompatibleState as error:
            return str(error)
        return ""

    return JobSize(plan.slots, bytes_of, nests_of(plan), text=text, fits=fits)


def elastic_of(sizing: Sizing, make: Callable[[int], JobSize], processes: Callable[[int], int]) -> ElasticSizes:
    """The sizes of an elastic job, for a coordinator. `make`: gives one. `processes`: how many task slots it holds."""
    elastic, autoscale, scale = *sizing, None
    if autoscale is not None:
        spans = span_micros(autoscale.lag) / 1e6, span_micros(autoscale.cooldown)
        scale = ScaleSettings(float(autoscale.target_busy), *spans)
    bounds = elastic.least, elastic.most, make, processes
    return ElasticSizes(*bounds, wait=span_micros(elastic.wait), scale=scale)
