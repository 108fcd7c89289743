"""The checkpoint that a job starts from: found, compared with the dataflow, and reported."""

from __future__ import annotations

import logging
import sys
import time
import warnings
from collections.abc import Mapping
from typing import Any

from tailrace.api.launch import Settings
from tailrace.api.restore.compatibility import check_manifest, unpublishable
from tailrace.api.restore.dry_run import RestoreCheck
from tailrace.api.restore.identity import dataflow_of
from tailrace.elements.timestamps import age_of
from tailrace.errors import CheckpointNotFound, ConfigError, level_of_user
from tailrace.graph.plan import Plan
from tailrace.log import fields, log
from tailrace.passwords import hide_passwords
from tailrace.settings import SETTINGS
from tailrace.spark.cluster.defaults import DEFAULTS
from tailrace.spelling import did_you_mean
from tailrace.statedata.fitting import restore_check
from tailrace.statedata.stored import StoredCheckpoint
from tailrace.storage.checkpoint_lookup import newest_start, resolve
from tailrace.storage.opening import absolute
from tailrace.storage.origins import Origin, origin_at
from tailrace.storage.store import Store

OR_NEW = "latest-or-new"
"""The newest checkpoint, or a new beginning where there is none yet: what a service manager can always start with."""


def find_origin(
    env: Settings,
    plan: Plan,
    name: str,
    requested: str | None,
    allow: bool | tuple[str, ...],
    start_again: bool = False,
) -> Origin | None:
    """The checkpoint to start from, read and compared with the dataflow. Raises `CheckpointError`,
    `JobAlreadyFinished`."""
    found = requested_checkpoint(env, plan, name, requested, start_again)
    if found is None:
        return None
    origin = origin_at(*found)
    check_manifest(origin.manifest, plan.graph, allow)
    return origin


def requested_checkpoint(
    env: Settings, plan: Plan, name: str, requested: str | None, start_again: bool = False
) -> tuple[Store, str] | None:
    """The checkpoint that a user names; None where the user names none, and where the job starts without one (see
    `newest_start`). Raises `CheckpointError`, `JobAlreadyFinished` and `ConfigError`."""
    if requested is None:
        return None
    config = env.checkpoint
    options = None if config is None else config.storage_options
    if requested not in ("latest", OR_NEW):
        try:
            return resolve(absolute(requested), options=options)
        except CheckpointNotFound as error:
            raise CheckpointNotFound(f"{error}{did_you_mean([requested], ['latest', OR_NEW])}") from None
    if config is None:
        raise ConfigError(
            f'from_checkpoint="{requested}" needs checkpoint=tr.CheckpointConfig(dir="…"), to know where to look (on the '
            f"command line: --checkpoint-dir DIR)"
        )
    store = Store(absolute(config.dir), name, options)
    found = newest_start(store, or_new=requested == OR_NEW, start_again=start_again, dataflow=dataflow_of(plan.graph))
    return None if found is None else (store, found)


def supervised_start(env: Settings, name: str, requested: str | None, start_again: bool) -> str:
    """The checkpoint that a job of a supervised program starts from: the newest one. Raises `ConfigError` where a further
    start of the program would not go on from there, but do again what is published."""
    wrong = ""
    if env.checkpoint is None:
        wrong = 'takes no checkpoints; give it checkpoint=tr.CheckpointConfig(dir="…"), or --checkpoint-dir DIR'
    elif requested not in (None, "latest", OR_NEW):
        wrong = (
            f"is to start from {requested!r}, each time; start it from there without supervision until it has taken a "
            f"checkpoint of its own, and then from {OR_NEW!r}"
        )
    elif start_again:
        wrong = "is to begin anew when it has finished; leave out if_finished"
    if wrong:
        raise ConfigError(
            f"job {name!r} is supervised ({SETTINGS['supervised'].variable}=1): its program is started again when it dies, "
            f"and then the job goes on from its newest checkpoint. It {wrong}"
        )
    return requested or OR_NEW


def check_restore(
    env: Settings, plan: Plan, name: str, from_checkpoint: str | None, allow_dropped_state: bool | tuple[str, ...]
) -> RestoreCheck:
    """Comparison of a checkpoint with this plan: what would be restored, and what would not. Starts nothing."""
    found = requested_checkpoint(env, plan, name, from_checkpoint)
    if found is None:
        there = f"there is none of job {name!r}" if from_checkpoint == OR_NEW else "its path, or 'latest'"
        raise ConfigError(f"a dry run needs a checkpoint: {there}")
    return restore_check(StoredCheckpoint(*found), plan.graph.nodes, plan.graph.max_parallelism, allow_dropped_state)


def open_checkpoint(path: str, storage_options: Mapping[str, Any] | None = None) -> StoredCheckpoint:
    """A checkpoint, opened so that its contents can be read."""
    return StoredCheckpoint.open(absolute(path), storage_options)


def warn_of_later(origin: Origin | None, store: Store | None) -> None:
    """Warns that output will be written twice, where a job starts from a checkpoint that is not its newest."""
    if origin is None or not origin.later or not origin.own_path(store):
        return
    warnings.warn(
        f"checkpoint {origin.manifest.checkpoint} ({hide_passwords(origin.path)}) is not the newest of this job, which is "
        f"{origin.later[-1][0]}: the output that later ones have published is visible already and is written again; "
        f"remove it where it must be there once. The later ones and their prepared output stay: you can start from them",
        stacklevel=level_of_user(),
    )


def report_start(name: str, origin: Origin | None) -> None:
    """Reports which checkpoint a job starts from: in the log, and for a command on standard error."""
    if origin is None:
        sentence = f"job {name!r} begins anew, with no checkpoint"
    else:
        age = max(0.0, time.time() - origin.manifest.timestamp / 1e6)
        where = hide_passwords(f"{origin.folder}/{origin.path}")
        sentence = f"job {name!r} goes on from checkpoint {origin.manifest.checkpoint}, {age_of(age)} old ({where})"
    log.info("%s", sentence, extra=fields(job=name))
    if DEFAULTS.by_command and not (log.isEnabledFor(logging.INFO) and log.hasHandlers()):
        print(sentence, file=sys.stderr)


def warn_of_lost_output(origin: Origin | None, plan: Plan) -> None:
    """Warns of prepared output that is given up because the user passed `allow_dropped_state`."""
    lost = {} if origin is None else unpublishable(origin.manifest.prepared, plan.graph.nodes)
    for uid, count in lost.items():
        warnings.warn(
            f"output that the sink with uid {uid!r} had prepared and not published ({count} transactions) is given up: it "
            f"will never be visible, and its hidden files stay where they are",
            stacklevel=level_of_user(),
        )
