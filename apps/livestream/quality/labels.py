"""Labels of clips: what a person sees in each second, in two passes, and how far the passes agree.

`labels.json` of the app holds them, with the rule that was written before the first pass and before any model
was tuned. The reference of the figures is the first pass; the second was made without a look at it.
"""

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path

from walle.errors import ConfigError

KINDS = ("highlight", "face")
SETS = ("tuning", "judging", "test", "fresh", "unseen", "stills")
FIT_SETS = ("tuning", "fresh")  # the fresh clips since ADR 26, after their only look
LABELS = Path(__file__).parents[1] / "labels.json"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """A labelled clip of `seconds` whole seconds (the last may be a part).

    `passes` has, for each annotator, the seconds labelled 1 by kind. Only clips of FIT_SETS are used for
    tuning. `sha256` is the file's; `source` says where to get it, and is empty for the project's first clips. `crop` is
    left, top, width and height in pixels of the part of the frames that is the clip, which begins at second `start`.
    `zoom` is for pictures: the share of their width and height that is left at the end of the clip.
    """

    name: str
    file: str
    seconds: int
    set: str
    sha256: str
    source: str
    crop: tuple[int, int, int, int] | None = None
    start: int = 0
    zoom: float = 1.0
    passes: tuple[dict[str, frozenset[int]], ...]

    def labels(self, kind: str, *, annotator: int = 0) -> list[bool]:
        """Return one label for each second."""
        chosen = self.passes[annotator][kind]
        return [second in chosen for second in range(self.seconds)]


def read_labels(path: Path) -> list[Clip]:
    """Return the labelled clips of a file.

    Raises:
        ConfigError: a clip lacks a field, has an unknown set, or labels a second that it does not have.
    """
    document = json.loads(path.read_text("utf-8"))
    clips = []
    for name, entry in document["clips"].items():
        try:
            passes = tuple({kind: _seconds(each[kind], entry["seconds"]) for kind in KINDS} for each in entry["passes"])
            origin = entry.get("source")
            clip = Clip(
                name=name,
                file=entry["file"],
                seconds=entry["seconds"],
                set=_set(entry["set"]),
                passes=passes,
                sha256=entry["sha256"],
                source=f"{origin['package']}: {origin['path']}" if origin else "",
                crop=_box(entry["crop"]) if "crop" in entry else None,
                start=entry.get("start", 0),
                zoom=_zoom(entry.get("zoom", 1.0)),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{path}: clip {name!r}: {error!r}") from error
        clips.append(clip)
    return clips


def _set(name: str) -> str:
    if name not in SETS:
        raise ValueError(f"the set is {name!r}, not one of {', '.join(SETS)}")
    return name


def _box(sides: list[int]) -> tuple[int, int, int, int]:
    left, top, width, height = sides
    if min(left, top) < 0 or min(width, height) < 1:
        raise ValueError(f"the crop {sides} is not left, top, width and height")
    return left, top, width, height


def _zoom(share: float) -> float:
    if not 0.5 <= share <= 1:
        raise ValueError(f"the zoom {share} is not between 0.5 and 1")
    return share


def _seconds(text: str, count: int) -> frozenset[int]:
    """Return the seconds of a list such as "0-3, 7"; an empty one has none."""
    chosen: set[int] = set()
    for part in filter(None, (each.strip() for each in text.split(","))):
        first, _, last = part.partition("-")
        chosen.update(range(int(first), int(last or first) + 1))
    if chosen and max(chosen) >= count:
        raise ValueError(f"second {max(chosen)} is labelled, the clip has {count} seconds")
    return frozenset(chosen)


@dataclasses.dataclass(frozen=True, slots=True)
class Agreement:
    """Agreement of two passes over the same seconds: their share of equal labels, and Cohen's kappa.

    Kappa is 1 for equal passes and 0 for what chance would give; None where a pass has only one label.
    """

    seconds: int
    equal: float
    kappa: float | None


def agreement(clips: Iterable[Clip], kind: str) -> Agreement:
    """Compare the first two passes over all seconds of the clips."""
    pairs = [pair for clip in clips for pair in zip(clip.labels(kind), clip.labels(kind, annotator=1), strict=True)]
    count = len(pairs)
    equal = sum(a == b for a, b in pairs) / count
    first, second = sum(a for a, _ in pairs) / count, sum(b for _, b in pairs) / count
    chance = first * second + (1 - first) * (1 - second)
    return Agreement(count, equal, None if chance == 1 else (equal - chance) / (1 - chance))
