"""Services of a worker for the tasks of one deployment."""

from __future__ import annotations

from collections.abc import Callable

from tailrace.protocol.deployment import Deploy
from tailrace.state.backend import Backend
from tailrace.state.manifest import decode_manifest
from tailrace.task.channels.services import RandomFactory, Services, Shared
from tailrace.task.channels.spilling import MakeSpill
from tailrace.task.contract.jobspec import JobSpec
from tailrace.task.contract.outside import Outside
from tailrace.task.contract.tuning import Tuning


def services_of(
    spec: JobSpec,
    deploy: Deploy | None,
    random_factory: RandomFactory,
    make_backend: Callable[[str, int], Backend] | None,
    make_spill: MakeSpill | None,
    outside: Outside,
    tuning: Tuning,
    shared: Shared | None = None,
) -> Services:
    """The services of a deployment; `deploy` is None for a slice that the coordinator does not deploy."""
    in_flight: list[str] = []
    if deploy is not None and deploy.manifest:
        in_flight = [*decode_manifest(deploy.manifest, "the manifest to restore").in_flight]
    return Services(
        random_factory=random_factory,
        job=spec.job,
        incarnation=0 if deploy is None else deploy.incarnation,
        run_id=spec.run_id,
        seed=spec.seed,
        max_parallelism=spec.plan.graph.max_parallelism,
        copy_records=spec.copy_records,
        debug=spec.debug,
        allow_dropped_state=spec.allow_dropped_state,
        checkpointing=spec.checkpointing,
        overtaking=spec.overtaking,
        ahead=spec.ahead,
        in_flight=frozenset(in_flight),
        make_spill=make_spill,
        depth=spec.depth,
        shared=shared if spec.reseeds else None,
        outside=outside,
        tuning=tuning,
        make_backend=make_backend,
    )
