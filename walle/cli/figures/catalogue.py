"""Catalogue of the figures: the benchmarks of a checkout, and what benchmarks/figures.toml says of each."""

import dataclasses
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from walle.errors import ConfigError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Figure:
    """A benchmark. `paper` is what the paper reports, `peers` are packages that it measures beside walle.

    `paper_short` is the paper's number for a cell of a table; without it `paper` is shown there too.
    `quick_s` is about how long it takes with the arguments `quick`, on two idle cores.
    """

    name: str
    path: Path
    title: str
    section: str = ""
    paper: str = ""
    paper_short: str = ""
    peers: tuple[str, ...] = ()
    quick: tuple[str, ...] = ()
    quick_s: float = 10.0
    pictures: tuple[str, ...] = ()

    @property
    def short(self) -> str:
        """Return what the paper reports, for a cell of a table."""
        return self.paper_short or self.paper or "no number"

    def command(self, *, quick: bool) -> list[str]:
        """Return the command line that measures it, without the program."""
        return ["figures", self.name, *(["--", *self.quick] if quick and self.quick else [])]


@dataclasses.dataclass(frozen=True)
class Catalogue:
    """The figures of a checkout at `root`. `modules` are all benchmarks by name, also those without a figure."""

    root: Path
    figures: Mapping[str, Figure]
    modules: Mapping[str, Path]

    @classmethod
    def find(cls) -> "Catalogue":
        """Return the catalogue of this folder, or of walle's own checkout. Raises ConfigError where there is none."""
        for root in (Path.cwd(), Path(__file__).resolve().parents[3]):
            modules = {path.stem: path for path in sorted((root / "benchmarks").glob("[a-z]*.py"))}
            if modules:
                return cls(root, _read(root / "benchmarks" / "figures.toml", modules), modules)
        what = "no benchmarks/ folder was found in this folder or in walle's"
        raise ConfigError(f"{what}; run this in a checkout of walle")

    def chosen(self, only: str, skip: str) -> list[Figure]:
        """Return the figures of `only` (all if it is empty) but those of `skip`: names separated by commas."""
        wanted, unwanted = (_names(text, self.figures) for text in (only, skip))
        return [
            figure for name, figure in self.figures.items() if (not wanted or name in wanted) and name not in unwanted
        ]


def _names(text: str, known: Mapping[str, Any]) -> set[str]:
    names = {name for name in text.split(",") if name}
    if unknown := sorted(names - known.keys()):
        raise ConfigError(f"unknown figure {unknown[0]!r}; known are: {', '.join(known)}")
    return names


def _read(path: Path, modules: Mapping[str, Path]) -> dict[str, Figure]:
    try:
        tables = tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    found = {}
    for name, table in tables.items():
        if name not in modules:
            raise ConfigError(f"{path}: [{name}] has no module benchmarks/{name}.py")
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in table.items()
        }
        try:
            found[name] = Figure(name=name, path=modules[name], **values)
        except TypeError as error:
            raise ConfigError(f"{path}: [{name}]: {error}") from error
    return found
