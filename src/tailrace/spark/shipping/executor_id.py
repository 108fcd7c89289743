"""Identification of the executor to which this process belongs."""

from __future__ import annotations

import re
from collections.abc import Mapping

_IN_LOG_URL = re.compile(r"[?&]executorId=([^&]+)")


def executor_here(environ: Mapping[str, str]) -> str:
    """The executor that this process belongs to, from environment variables that it inherits from the executor; empty
    where none of them names it, as in local mode. Kubernetes sets the executor's id there. A standalone cluster has it in
    the address of its log, and YARN sets the id of its container."""
    named = environ.get("SPARK_EXECUTOR_ID")
    in_url = _IN_LOG_URL.search(environ.get("SPARK_LOG_URL_STDOUT", ""))
    return named or (in_url[1] if in_url else environ.get("CONTAINER_ID", ""))
