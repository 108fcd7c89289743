"""The Spark task that is a worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark import cloudpickle

from tailrace.runtime.network.config import WorkerConfig
from tailrace.runtime.outpost.hosted_folder import Host
from tailrace.spark.shipping.arrival import looking
from tailrace.spark.shipping.parcel import Parcel
from tailrace.spark.shipping.spark_tasks import columns_of_one

ANSWER = "left string, lacking string"
"""Columns of the answer of a worker's task: why the worker left, or what its executor lacks, as JSON."""


def worker_task(config: WorkerConfig, host: Host | None = None, parcel: Parcel | None = None) -> Callable[[Any], Any]:
    """The Spark task of a worker. It travels by value and refers to nothing of tailrace before it knows that tailrace is
    there: else Spark would try four times to unpickle it, and print a traceback each time. `parcel` is the archive that
    Spark has brought."""
    look, column, ours = looking(parcel), columns_of_one(), cloudpickle.dumps((config, host))

    def work(batches: Any) -> Any:
        import pickle

        import pyarrow as pa

        for _ in batches:
            pass
        left, lacking = None, look()
        if lacking is None:
            import json
            import os
            import socket
            from dataclasses import replace

            from tailrace.runtime.network.listener import Unreachable
            from tailrace.runtime.outpost.hosted_folder import know
            from tailrace.runtime.worker.main_loop import run_worker
            from tailrace.spark.shipping.executor_id import executor_here
            from tailrace.spark.shipping.plan_files import load_job

            config, host = pickle.loads(ours)
            if host is not None:
                know(host)
            try:
                left = run_worker(replace(config, executor=executor_here(os.environ)), load_job)
            except Unreachable as error:  # a retry by Spark would fail alike
                lacking = json.dumps({"unreachable": str(error), "host": socket.gethostname()})
        yield pa.RecordBatch.from_arrays([column(left), column(lacking)], names=["left", "lacking"])

    return work
