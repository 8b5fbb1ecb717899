"""Files of the labelled clips: each is looked for in several folders, and its content checked."""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from apps.livestream.quality.labels import Clip
from walle.errors import ConfigError


@dataclasses.dataclass(frozen=True, slots=True)
class ClipFiles:
    """Paths of clips by name, and the clips whose files are in none of the folders."""

    paths: Mapping[str, Path]
    absent: tuple[Clip, ...]

    def absences(self) -> list[str]:
        """Return a line for each absent clip: what is missing, and where it can be had."""
        return [
            f"{clip.name} ({clip.set}, {clip.seconds} s) is absent: {clip.file}"
            + (f", from {clip.source}" if clip.source else "")
            for clip in self.absent
        ]


def find_clips(clips: Sequence[Clip], folders: Sequence[Path]) -> ClipFiles:
    """Find each clip's file in the first folder that has one of its name.

    Raises:
        ConfigError: a folder does not exist, a file has another content than the labelled one, or no clip is found.
    """
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"{folder}: not a folder; --clips names folders that have the files of labels.json")
    paths: dict[str, Path] = {}
    absent = []
    for clip in clips:
        path = next((folder / clip.file for folder in folders if (folder / clip.file).is_file()), None)
        if path is None:
            absent.append(clip)
            continue
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != clip.sha256:
            raise ConfigError(
                f"{path}: SHA-256 is {found}, that of the labelled file {clip.sha256}; the labels of {clip.name!r} do"
                " not belong to this file"
            )
        paths[clip.name] = path
    if clips and not paths:
        names = ", ".join(str(folder) for folder in folders)
        raise ConfigError(f"{names}: none of the {len(clips)} clips of labels.json is here, such as {clips[0].file}")
    return ClipFiles(paths, tuple(absent))
