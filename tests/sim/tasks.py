"""A small task, as files."""

from walle.task.format.bundle import TaskVersion
from walle.task.format.tree import TaskTree

CONFIG = b'[task]\nname = "ipv"\n[trigger]\nsequence = ["page_exit"]\n'
MAIN = b"import math\n\n\ndef execute(ctx, x):\n    return math.sqrt(x)\n"
FILES = {"task.toml": CONFIG, "main.py": MAIN}


def tree(files: dict[str, bytes] | None = None, **more: bytes) -> TaskTree:
    """Return a version v1 of shop/ipv: the small task, with `files` instead of or besides its own."""
    return TaskTree(
        scenario="shop", task="ipv", version="v1", commit="c" * 40, files={**FILES, **(files or {}), **more}
    )


def task_version(files: dict[str, bytes] | None = None, **more: bytes) -> TaskVersion:
    """Return the tree of these files with its task.toml parsed."""
    return TaskVersion.parse(tree(files, **more))
