"""What the tasks of one deployment get from their worker."""

from __future__ import annotations

from collections.abc import Callable

from tailrace.protocol.deployment import Deploy
from tailrace.state.backend import Backend
from tailrace.state.manifest import decode_manifest
from tailrace.task.history import Facts
from tailrace.task.jobspec import JobSpec
from tailrace.task.mirrors import Mirror
from tailrace.task.outside import Outside, Recorder
from tailrace.task.services import RandomFactory, Services
from tailrace.task.spilling import Spill
from tailrace.task.tuning import Tuning


def services_of(
    spec: JobSpec,
    deploy: Deploy | None,
    random_factory: RandomFactory,
    make_backend: Callable[[str, int], Backend] | None,
    make_spill: Callable[[str | None], Spill] | None,
    outside: Outside,
    tuning: Tuning,
) -> Services:
    """The services of a deployment; None: of a slice that nobody deploys."""
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
        facts=Facts() if spec.standbys and deploy is not None else None,
        sizes=Facts() if spec.standbys and deploy is not None else None,
        outside=Recorder() if spec.standbys else outside,
        tuning=tuning,
        make_backend=make_backend,
    )


def backends(
    spec: JobSpec, make: Callable[[JobSpec, str, int], Backend], mirror: Mirror | None
) -> Callable[[str, int], Backend]:
    """Makes the backends of a deployment; those that a mirror has are there already."""

    def made(uid: str, subtask: int) -> Backend:
        found = None if mirror is None else mirror.take(uid)
        return make(spec, uid, subtask) if found is None else found

    return made
