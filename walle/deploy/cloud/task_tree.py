"""Files of a task version, as they were committed or as they are in an author's folder."""

import dataclasses
from collections.abc import Mapping

MAX_TREE_FILES = 2000
MAX_TREE_BYTES = 128 * 1024 * 1024


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskTree:
    """The files of one task version: path from the root, with slashes → bytes."""

    scenario: str
    task: str
    version: str
    commit: str  # sha1 in hex
    files: Mapping[str, bytes]
