"""`tailrace prune PATH`: removes what dead runs of jobs have left in a checkpoint folder."""

from __future__ import annotations

from typing import Annotated

import typer

from tailrace.cli.showing import echo
from tailrace.connectors.filesinks import remove_given_up
from tailrace.errors import ConfigError, TailraceError
from tailrace.state.manifest import Prepared
from tailrace.storage.checkpoint_lookup import job_folders
from tailrace.storage.pruning import capsules_in, check_settled, surplus_in
from tailrace.storage.reading import read_placed
from tailrace.storage.scratch import remove_abandoned
from tailrace.storage.store import Store


def prune_command(
    path: Annotated[str, typer.Argument(metavar="PATH", help="A checkpoint folder, or the folder of a job in it.")],
    keep_runs: Annotated[
        int, typer.Option(min=1, metavar="N", help="So many runs keep what they have left, the newest ones.")
    ] = 1,
    capsules: Annotated[
        bool, typer.Option("--capsules", help="Also the capsules of failed calls, of all runs.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, and remove nothing.")] = False,
) -> None:
    """Remove what dead runs of jobs have left. That is old checkpoints, output under cover, claims, spills, capsules."""
    refused = False
    try:
        jobs = [Store.at(folder) for folder in job_folders(path)]
        if not jobs:
            raise ConfigError(f"no job has begun in {path}")
        for store in jobs:
            refused |= not _prune_job(store, keep_runs, capsules, dry_run)
        scratch = [] if dry_run else remove_abandoned()
        if scratch:
            echo(f"{len(scratch)} folders with spill files of processes of this machine that are gone")
    except (TailraceError, OSError) as error:
        echo(f"tailrace prune: {error}", err=True)
        raise typer.Exit(1) from None
    if refused:
        raise typer.Exit(1)


def _prune_job(store: Store, keep: int, capsules: bool, dry_run: bool) -> bool:
    """Prunes one job, and prints what it removed. False where nothing may be removed now."""
    try:
        check_settled(store.folder)
    except ConfigError as error:
        echo(f"tailrace prune: {error}", err=True)
        return False
    found = surplus_in(store.folder, keep)
    kept_calls = [name for name in capsules_in(store.folder) if name not in found.names] if capsules else []
    tokens = [_token(store, one) for one in found.prepared]  # read before the files that hold them are removed
    if not dry_run:
        store.prune(keep)
        store.delete(kept_calls)
    gone = "would go" if dry_run else "removed"
    echo(
        f"job {store.job!r}: {gone}: {len(found.runs)} runs, {len(found.names) + len(kept_calls)} files in {store.url}"
    )
    if tokens and not dry_run:
        for folder in remove_given_up(tokens, [run.run_id for run in found.runs]):
            echo(f"job {store.job!r}: removed: what these runs had left under cover in {folder}")
    return True


def _token(store: Store, one: Prepared) -> bytes:
    return one.data if isinstance(one.data, bytes) else read_placed(store, one.data)
