"""The IPV task's folder as its author pushes it: sources, the encoder, and for a broken version the files laid over.

python -m apps.ipv.demo.push FOLDER [--sizes]
"""

import argparse
import shutil
from pathlib import Path

from apps.ipv.make_encoder import ENCODER_PATH, sizes_weights, write_encoder
from apps.sizes import add_variants, sized

_APP = Path(__file__).parents[1]


def write_task(folder: Path, *, broken: bool = False, sizes: bool = False) -> None:
    """Write the task's files into `folder`, which exists; `sizes` adds smaller encoders as variants."""
    ignored = shutil.ignore_patterns("__pycache__", "*.walle")
    shutil.copytree(_APP / "task", folder, dirs_exist_ok=True, ignore=ignored)
    resources = folder / "resources"
    resources.mkdir(exist_ok=True)
    write_encoder(resources / ENCODER_PATH.name)
    if broken:
        shutil.copytree(_APP / "task_broken", folder, dirs_exist_ok=True, ignore=ignored)
    if sizes:
        for name, weights in sizes_weights().items():
            write_encoder(resources / sized(ENCODER_PATH.name, name), weights)
        add_variants(folder, ENCODER_PATH.name)


def main() -> None:
    """Write the task's folder."""
    parser = argparse.ArgumentParser(description="Write the IPV task's folder as it is pushed.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sizes", action="store_true", help="with smaller encoders for slower devices")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    write_task(arguments.folder, sizes=arguments.sizes)


if __name__ == "__main__":
    main()
