"""The folder of a run's results, and the list of what the app wrote there: a later run removes these files only."""

import contextlib
import json
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path

from walle.base.durable_file import write_file
from walle.errors import ConfigError

MANIFEST = "files.json"
_MADE = re.compile(r"(camera-\d+/)?(highlights\.json|index\.html|stream(\.\w{1,10})?|highlight-\d+\.(jpg|mp4))")


class ResultsFolder:
    """`path`, a folder that is new, empty, or of an earlier run. `files.json` in it lists the files of the last run.

    `source` is the file that is to be played, if it is one.

    Raises:
        ConfigError: there are files in it, and no list of an earlier run; or it is not a folder; or the source is one
            of the files of the earlier run, which are removed.
    """

    def __init__(self, path: Path, source: Path | None = None) -> None:
        self.path = path
        self._names: set[str] = set()
        self._earlier = _read_manifest(path)
        if source is not None and source.resolve() in {(path / name).resolve() for name in self._earlier}:
            raise ConfigError(f"{source} is a result of an earlier run, which this run removes; give another --out")

    def check_writable(self) -> None:
        """Raise ConfigError if no file can be written into the folder. Nothing of the attempt is left."""
        made = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.path):
                pass
        except OSError as error:
            what = f"{self.path}: no file can be written there ({error.strerror}); give another folder with --out"
            raise ConfigError(what) from error
        finally:
            for folder in made:
                with contextlib.suppress(OSError):  # the folder was not made, or another program has put a file into it
                    folder.rmdir()

    def begin(self) -> None:
        """Make the folder, and remove the files of the last run.

        A name in the list that no run gives a file is left, as is the target of a link.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        for name in self._earlier:
            file = self.path / name
            if not file.parent.is_symlink():
                file.unlink(missing_ok=True)
                if file.parent != self.path:
                    with contextlib.suppress(OSError):  # the folder has other files, or does not exist
                        file.parent.rmdir()
        self._write_manifest()

    def add(self, folder: Path, names: Iterable[str]) -> None:
        """List files that are to be written into `folder`, which is `path` or in it."""
        self._names |= {(folder / name).relative_to(self.path).as_posix() for name in names}
        self._write_manifest()

    def _write_manifest(self) -> None:
        value = {"about": "Files of walle demo livestream. The next run removes them.", "files": sorted(self._names)}
        write_file(self.path / MANIFEST, json.dumps(value, indent=1).encode() + b"\n")


def _read_manifest(path: Path) -> list[str]:
    """Return the files of the last run, those with a name of a run's."""
    advice = "give a new or empty folder with --out"
    try:
        there = {entry.name for entry in path.iterdir()}
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigError(f"{path}: not a folder that can be read ({error.strerror}); {advice}") from error
    if not there:
        return []
    if MANIFEST not in there:
        raise ConfigError(f"{path} has files, and none of them is an earlier run's {MANIFEST}; {advice}")
    try:
        names = json.loads((path / MANIFEST).read_bytes())["files"]
        return [name for name in names if isinstance(name, str) and _MADE.fullmatch(name)]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise ConfigError(f"{path / MANIFEST} is not the list of an earlier run's files; {advice}") from error
