"""Files of sinks on S3: multipart uploads, which are completed to be published."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from tailrace.connectors.hidden import FileOrigin, Hidden, SinkFolder, Uploaded, origin_of, trace_of, under_cover
from tailrace.connectors.pieces import Pieces
from tailrace.connectors.publishing import Finished
from tailrace.connectors.remotefiles import filesystem
from tailrace.storage.remote import open_uploads

PART_BYTES = 8 << 20
"""Size of the parts of a multipart upload, in bytes. S3 takes parts of at least 5 MiB, and at most 10,000 of them."""


class S3Folder(SinkFolder):
    """A folder of a sink on S3: a bucket and a prefix."""

    def __init__(self, url: str) -> None:
        self.fs = filesystem(url)
        bucket, _, prefix = url.partition("://")[2].partition("/")
        self.bucket, self.prefix = bucket, prefix and f"{prefix}/"

    def create(self, name: str) -> Hidden:
        above = f"s3://{self.bucket}/{self.prefix}".rstrip("/") if "/" in name else None
        return Upload(self.fs, self.bucket, f"{self.prefix}{name}", above)

    def sweep(self, goes: Callable[[FileOrigin], bool], keep: set[str], *, traces: bool = True) -> None:
        for key, upload in list(self._uploads()):
            name = key.rpartition("/")[2]
            origin = origin_of(name)
            if origin is not None and goes(origin) and name not in keep:
                with contextlib.suppress(OSError):
                    self.fs.call_s3("abort_multipart_upload", Bucket=self.bucket, Key=key, UploadId=upload)
        keys = list(self._traces()) if traces else []
        for name, plain in under_cover([key.removeprefix(self.prefix) for key in keys], goes, traces):
            if plain not in keep:
                with contextlib.suppress(OSError):
                    self.fs.call_s3("delete_object", Bucket=self.bucket, Key=f"{self.prefix}{name}")

    def _traces(self) -> Iterator[str]:
        at: dict[str, str] = {}
        while True:
            page = self.fs.call_s3("list_objects_v2", Bucket=self.bucket, Prefix=f"{self.prefix}.part-", **at)
            for one in page.get("Contents", ()):
                yield one["Key"]
            if not page.get("IsTruncated"):
                return
            at = {"ContinuationToken": page["NextContinuationToken"]}

    def _uploads(self) -> Iterator[tuple[str, str]]:
        """The uploads of this folder, and of folders below it."""
        return open_uploads(self.fs, self.bucket, self.prefix)


class Upload(Hidden, Pieces):
    """A multipart upload, written as a file."""

    def __init__(self, fs: Any, bucket: str, key: str, above: str | None = None) -> None:
        super().__init__(PART_BYTES)
        self.fs, self.bucket, self.key, self.above = fs, bucket, key, above
        self.stream = self
        self.parts: list[tuple[int, str]] = []
        self.upload: str = fs.call_s3("create_multipart_upload", Bucket=bucket, Key=key)["UploadId"]

    def _send(self, piece: bytes) -> None:
        number = len(self.parts) + 1
        where = {"Bucket": self.bucket, "Key": self.key, "UploadId": self.upload}
        answer = self.fs.call_s3("upload_part", **where, PartNumber=number, Body=piece)
        self.parts.append((number, answer["ETag"]))

    def finish(self) -> bytes:
        self._rest()
        if not self.parts:
            self._send(b"")  # an upload has at least one part
        self.close()
        return msgspec.json.encode(
            Uploaded(f"s3://{self.bucket}/{self.key}", self.upload, self.parts, above=self.above)
        )

    def discard(self) -> None:
        self.close()
        with contextlib.suppress(OSError):
            self.fs.call_s3("abort_multipart_upload", Bucket=self.bucket, Key=self.key, UploadId=self.upload)


class FinishedUpload(Finished):
    """A multipart upload with all of its parts, published by its completion."""

    def __init__(self, made: Uploaded) -> None:
        self.made = made
        self.name, self.trace = made.url, trace_of(made)
        self.fs = filesystem(made.url)
        self.bucket, _, self.key = made.url.partition("://")[2].partition("/")

    def is_covered(self) -> bool:
        try:
            self.fs.call_s3("list_parts", Bucket=self.bucket, Key=self.key, UploadId=self.made.upload, MaxParts=1)
        except FileNotFoundError:
            return False
        return True

    def visible(self) -> bool:
        return self._there(self.key)

    def has_trace(self) -> bool:
        return self._there(self.trace.partition("://")[2].partition("/")[2])

    def _there(self, key: str) -> bool:
        try:
            self.fs.call_s3("head_object", Bucket=self.bucket, Key=key)
        except FileNotFoundError:
            return False
        return True

    def leave_trace(self) -> None:
        key = self.trace.partition("://")[2].partition("/")[2]
        self.fs.call_s3("put_object", Bucket=self.bucket, Key=key, Body=b"")

    def uncover(self) -> None:
        parts = [{"PartNumber": number, "ETag": etag} for number, etag in self.made.parts]
        with contextlib.suppress(FileNotFoundError):  # another publisher was quicker
            self.fs.call_s3(
                "complete_multipart_upload",
                Bucket=self.bucket,
                Key=self.key,
                UploadId=self.made.upload,
                MultipartUpload={"Parts": parts},
            )

    def remove_trace(self) -> None:
        key = self.trace.partition("://")[2].partition("/")[2]
        self.fs.call_s3("delete_object", Bucket=self.bucket, Key=key)
