"""Files of one task version, as a commit or a folder has them."""

import dataclasses
from collections.abc import Mapping

from walle.task.format.large_file import LargeFile

MAX_TREE_FILES = 2000
MAX_TREE_BYTES = 128 * 1024 * 1024


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskTree:
    """The files of one task version as they were committed: path from the root, with slashes → bytes.

    `large` are those whose bytes are not in the tree, but a Git LFS pointer to them; `files` does not have them.
    """

    scenario: str
    task: str
    version: str
    commit: str  # sha1 in hex
    files: Mapping[str, bytes]
    large: Mapping[str, LargeFile] = dataclasses.field(default_factory=dict)
