"""The IPV task's folder as its author pushes it: sources, the encoder, and for a broken version the files laid over."""

import shutil
from pathlib import Path

from apps.ipv.make_encoder import write_encoder

_APP = Path(__file__).parents[1]


def write_task(folder: Path, *, broken: bool = False) -> None:
    """Write the task's files into `folder`, which exists."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(_APP / "task", folder, dirs_exist_ok=True, ignore=ignored)
    (folder / "resources").mkdir(exist_ok=True)
    write_encoder(folder / "resources" / "encoder.walle")
    if broken:
        shutil.copytree(_APP / "task_broken", folder, dirs_exist_ok=True, ignore=ignored)
