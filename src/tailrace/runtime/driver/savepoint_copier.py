"""The copier of one job's savepoints, with a thread of its own: the commits of its checkpoints do not wait for a copy."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tailrace.coordinator.actions import CopySavepoint
from tailrace.coordinator.machine import Coordinator
from tailrace.errors import TailraceError, error_text
from tailrace.runtime.eventloop.selector import EventLoop
from tailrace.runtime.eventloop.storage_thread import StorageThread
from tailrace.state.manifest import Manifest
from tailrace.state.paths import SAVEPOINT
from tailrace.statedata.inputs import unread_inputs
from tailrace.storage.opening import open_folder
from tailrace.storage.savepoints import copy_savepoint, default_place, names_in, remove
from tailrace.storage.store import Store

CLOSE_SECONDS = 30.0


class Copier:
    """The savepoints that are to be copied out of a job's folder. The thread starts with the first one."""

    def __init__(
        self,
        store: Store,
        loop: EventLoop,
        name: str,
        machine: Coordinator,
        carry_out: Callable[[], None],
        now: Callable[[], int],
    ) -> None:
        self._now = now
        self._store, self._loop, self._name, self._machine, self._carry_out = store, loop, name, machine, carry_out
        self._thread: StorageThread | None = None
        self._over = False
        self._unheard: dict[str, Manifest] = {}
        """Complete copies by URL, until the coordinator has taken note of them."""

    def copy(self, action: CopySavepoint) -> None:
        """Copies a savepoint, and reports the result to the coordinator."""
        if self._thread is None:
            self._thread = StorageThread(self._loop, f"tailrace-savepoints-{self._name}")
        self._thread.do(lambda: self._copy(action))

    def close(self) -> None:
        """Ends the thread with the job: copies in progress are given up, and copies that the coordinator has not noted
        are removed."""
        self._over = True
        if self._thread is not None:
            self._thread.close(CLOSE_SECONDS)
        for url, savepoint in list(self._unheard.items()):
            self._remove(url, savepoint)

    # In the thread.

    def _copy(self, action: CopySavepoint) -> None:
        machine, number = self._machine, action.checkpoint
        store, options = self._store, self._store.storage_options
        try:
            url = action.target or default_place(store.url, action.savepoint)
            target = open_folder(url, options)
            inputs = unread_inputs(store, action.savepoint)
            size = copy_savepoint(store.folder, target, action.savepoint, lambda: self._over, inputs, options)
        except Exception as error:
            reason = str(error.args[0]) if isinstance(error, TailraceError) else f"{error_text(error)}"
            self._post(lambda: machine.not_copied(number, reason, self._now()))
            return
        self._unheard[target.url] = msgspec.structs.replace(action.savepoint, inputs=[file for _, file in inputs])

        def drop() -> None:
            savepoint = self._unheard.pop(target.url)
            if not machine.copy_done(number, target.url, size, self._now()):
                self._remove(target.url, savepoint)

        self._post(drop)

    def _post(self, event: Callable[[], object]) -> None:
        def act() -> None:
            event()
            self._carry_out()

        assert self._thread is not None
        self._thread.post(act)

    def _remove(self, url: str, savepoint: Manifest) -> None:
        remove(open_folder(url, self._store.storage_options), [SAVEPOINT, *names_in(savepoint)], whole=True)
