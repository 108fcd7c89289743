"""How long a store may leave a request unanswered.

The clients of S3 wait for ever for a store that takes a write and then says nothing: the body is sent once the store wants
it (`Expect: 100-continue`), and no time-out of theirs covers that. Whoever asked would wait long after the store is back.
Here each request has an end. What has come of it is unknown then, as with a connection that breaks.
"""

from __future__ import annotations

import asyncio
from typing import Any

ANSWER_SECONDS = 120.0
"""For one request, with all that the client tries again by itself."""
BYTES_PER_SECOND = 64 << 10
"""A request that takes bytes along has a second more for each so many."""


def bounded(fs: Any) -> Any:
    """A filesystem of s3fs whose requests raise `ConnectionError` when they had no answer in time; others as they are."""
    if not hasattr(type(fs), "_call_s3") or "_call_s3" in vars(fs):
        return fs
    from fsspec.asyn import sync_wrapper

    async def call(method: str, *given: Any, **options: Any) -> Any:
        body = options.get("Body")
        seconds = ANSWER_SECONDS + (len(body) / BYTES_PER_SECOND if isinstance(body, bytes | bytearray) else 0)
        try:
            return await asyncio.wait_for(type(fs)._call_s3(fs, method, *given, **options), seconds)
        except TimeoutError:
            # No TimeoutError: fsspec drops the words of that.
            raise ConnectionError(f"{method}: no answer for {seconds:g} s") from None

    fs._call_s3, fs.call_s3 = call, sync_wrapper(call, obj=fs)
    return fs
