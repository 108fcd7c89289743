"""Time limits for the requests to an object store.

The clients of S3 wait for ever when a store accepts a write and then stops answering. A client sends the body once the
store requests it (`Expect: 100-continue`), and no time-out of the client covers that wait. The caller would go on waiting
long after the store is back. Here each request has a time limit. The outcome of a request beyond it is unknown, as after
a broken connection.
"""

from __future__ import annotations

import asyncio
from typing import Any

ANSWER_SECONDS = 120.0
"""Time limit of one request, in seconds, with all repeats that the client makes by itself."""
BYTES_PER_SECOND = 64 << 10
"""Size of the body, in bytes, for which a request gets one more second."""


def with_time_limit(fs: Any) -> Any:
    """A filesystem of s3fs whose requests raise `ConnectionError` beyond their time limit. Other filesystems are returned as
    they are."""
    if not hasattr(type(fs), "_call_s3") or "_call_s3" in vars(fs):
        return fs
    from fsspec.asyn import sync_wrapper

    async def call(method: str, *given: Any, **options: Any) -> Any:
        body = options.get("Body")
        seconds = ANSWER_SECONDS + (len(body) / BYTES_PER_SECOND if isinstance(body, bytes | bytearray) else 0)
        try:
            return await asyncio.wait_for(type(fs)._call_s3(fs, method, *given, **options), seconds)
        except TimeoutError:
            # Not a TimeoutError: fsspec drops the message of one.
            raise ConnectionError(f"{method}: no answer for {seconds:g} s") from None

    fs._call_s3, fs.call_s3 = call, sync_wrapper(call, obj=fs)
    return fs
