"""A folder of model files, each checked against its manifest entry."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from walle.errors import ConfigError
from walle.model_files.manifest import ModelEntry

FOLDER_VARIABLE = "WALLE_MODELS"


class ModelFileError(ConfigError):
    """A model's file that is absent or is not what the manifest says. `path` is where it should be."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"{path}: {what}")
        self.path = path


def default_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder $WALLE_MODELS, else walle/models in the user's cache ($XDG_CACHE_HOME or ~/.cache).

    Raises:
        RuntimeError: the user has no home folder.
    """
    if chosen := environment.get(FOLDER_VARIABLE):
        return Path(chosen)
    base = Path(environment.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "walle" / "models"


class ModelFolder:
    """Model files by their names in a manifest; `path` is the folder, which may not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def has(self, entry: ModelEntry) -> bool:
        """Return whether the entry's file is there.

        Raises:
            ModelFileError: a file of that name is there, and has other content or cannot be read.
        """
        place = self.path / entry.file
        try:
            with place.open("rb") as file:
                size, digest = os.fstat(file.fileno()).st_size, ""
                if size == entry.bytes:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise ModelFileError(place, f"cannot be read: {error.strerror}") from error
        if size != entry.bytes:
            raise ModelFileError(
                place, f"has {size} bytes, the manifest says {entry.bytes} for {entry.name}; remove the file"
            )
        if digest != entry.sha256:
            raise ModelFileError(
                place, f"its SHA-256 is {digest}, the manifest says {entry.sha256} for {entry.name}; remove the file"
            )
        return True

    def file(self, entry: ModelEntry) -> Path:
        """Return the path of the entry's file, whose hash was checked now.

        Raises:
            ModelFileError: it is absent, or has other content.
        """
        if not self.has(entry):
            raise ModelFileError(
                self.path / entry.file,
                f"does not exist; fetch it with: walle model get {entry.name} --models-dir {self.path}"
                f" (or name the folder that has it: --models-dir, {FOLDER_VARIABLE})",
            )
        return self.path / entry.file
