"""A folder on any filesystem, by its path or URL."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from tailrace.storage.filesystem import Folder, LocalFolder, scheme_of


def absolute(url: str) -> str:
    """A URL or path that means the same in every process. Local ones become absolute paths."""
    if scheme_of(url) != "file":
        return url.rstrip("/")
    path = url
    if url[:5].lower() == "file:":
        path = re.sub("^//(localhost)?(?=/)", "", url[5:])
    path = os.path.abspath(os.path.expanduser(path))
    return "/" + path.lstrip("/")  # POSIX would keep two slashes at the start


def open_folder(url: str, storage_options: Mapping[str, Any] | None = None) -> Folder:
    """The folder at a URL or path. `storage_options` go to the filesystem's fsspec class. Raises `ConfigError` for a scheme
    that is not supported, or whose package is not installed."""
    url = absolute(url)
    if scheme_of(url) == "file":
        return LocalFolder(url)
    from tailrace.storage.remote import open_remote

    return open_remote(url, storage_options or {})
