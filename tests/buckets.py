"""A server that speaks S3, and buckets behind it."""

from __future__ import annotations

import contextlib
import logging
import urllib.request
import uuid
from collections.abc import Iterator
from typing import Any

REGION = "us-east-1"
ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": REGION}
"""The credentials, where the libraries of S3 look for them."""


@contextlib.contextmanager
def serving() -> Iterator[str]:
    """Serves on this machine, at the URL that is given."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    yield "http://{}:{}".format(*server.get_host_and_port())
    server.stop()


def new_bucket(endpoint: str) -> str:
    """The name of a bucket that nobody else has."""
    bucket = f"b{uuid.uuid4().hex[:12]}"
    request = urllib.request.Request(f"{endpoint}/{bucket}", method="PUT", headers={"Content-Length": "0"})
    urllib.request.urlopen(request, timeout=10).close()
    return bucket


def options(endpoint: str) -> dict[str, Any]:
    """The endpoint, in the form of `storage_options` of checkpoints."""
    return {"key": "key", "secret": "secret", "client_kwargs": {"endpoint_url": endpoint, "region_name": REGION}}
