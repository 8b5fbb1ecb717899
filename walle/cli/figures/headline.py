"""Headline of a figure: one line that a benchmark prints last, with its number and its peers'.

In short | MobileNetV2, one thread; lower is better | ours 12.3 ms | onnxruntime 14.1 ms | MNN: not installed
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Literal, Self

type Better = Literal["lower", "higher"]

_BEGIN = "In short"
_OURS = "ours"
_SEPARATOR = " | "
_REASON = ": "
_BETTER: tuple[Better, ...] = ("lower", "higher")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Headline:
    """The number of a figure that its section of the paper reports, ours and the peers' in the same unit.

    `what` says what was measured. A peer has a number, or a text that says why it has none.

    Raises:
        ValueError: a number is not finite, or a text cannot be in a line of this form.
    """

    what: str
    unit: str
    better: Better
    ours: float
    peers: Mapping[str, float | str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for text in (self.what, self.unit, *self.peers, *self._reasons().values()):
            if text != text.strip() or not text.isprintable() or not text or "|" in text:
                raise ValueError(f"headline {self.what!r}: {text!r} is empty, or has a bar or a space at an end")
        if wrong := [name for name in self.peers if _REASON in name]:
            raise ValueError(f"headline {self.what!r}: the name of peer {wrong[0]!r} has a colon")
        if self.better not in _BETTER:
            raise ValueError(f"headline {self.what!r}: better is {self.better!r}, not one of {', '.join(_BETTER)}")
        for name, value in {_OURS: self.ours, **self.measured()}.items():
            if not math.isfinite(value):
                raise ValueError(f"headline {self.what!r}: the number of {name} is {value}")

    def _reasons(self) -> dict[str, str]:
        return {name: value for name, value in self.peers.items() if isinstance(value, str)}

    def measured(self) -> dict[str, float]:
        """Return the numbers of the peers that have one."""
        return {name: value for name, value in self.peers.items() if not isinstance(value, str)}

    def best_peer(self) -> tuple[str, float] | None:
        """Return name and number of the best peer; None if none has a number."""
        measured = self.measured()
        if not measured:
            return None
        name = (min if self.better == "lower" else max)(measured, key=measured.__getitem__)
        return name, measured[name]

    def absent(self) -> str:
        """Return which peers have no number and why, as text."""
        return ", ".join(f"{name} {reason}" for name, reason in self._reasons().items())

    def shown(self, value: float) -> str:
        """Return a number with its unit."""
        return f"{_number(value)} {self.unit}"

    def title(self) -> str:
        """Return what was measured, and which numbers are better."""
        return f"{self.what}; {self.better} is better"

    def to_line(self) -> str:
        """Return the line that a benchmark prints."""
        fields = [_BEGIN, self.title(), f"{_OURS} {self.shown(self.ours)}"]
        for name, value in self.peers.items():
            fields.append(f"{name}{_REASON}{value}" if isinstance(value, str) else f"{name} {self.shown(value)}")
        return _SEPARATOR.join(fields)

    @classmethod
    def parse(cls, line: str) -> Self | None:
        """Return the headline of a line, with its rounded numbers; None for any other line.

        Raises:
            ValueError: the line begins as a headline, and is not one.
        """
        begin, *fields = line.strip().split(_SEPARATOR)
        if begin != _BEGIN:
            return None
        try:
            title, ours, *others = fields
            what, _, better = title.rpartition("; ")
            _, number, unit = ours.split(" ", 2)
            peers: dict[str, float | str] = {}
            for field in others:
                name, has_reason, reason = field.partition(_REASON)
                if has_reason:
                    peers[name] = reason
                else:
                    name, value = field.removesuffix(f" {unit}").rsplit(" ", 1)
                    peers[name] = _value(value)
            found: Better = "higher" if better == "higher is better" else "lower"
            headline = cls(what=what, unit=unit, better=found, ours=_value(number), peers=peers)
        except ValueError as error:
            raise ValueError(f"{line!r} is not a headline: {error}") from error
        if headline.to_line() != line.strip():
            raise ValueError(f"{line!r} is not a headline: it reads {headline.to_line()!r}")
        return headline

    @classmethod
    def find(cls, output: str) -> list[Self]:
        """Return the headlines in the output of a benchmark, in order; a line that is not one is left out."""
        found = []
        for line in output.splitlines():
            try:
                headline = cls.parse(line)
            except ValueError:
                continue
            if headline is not None:
                found.append(headline)
        return found


def _number(value: float) -> str:
    """Return a number with three digits or more, without an exponent where it is of a usual size."""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.3g}"


def _value(text: str) -> float:
    return float(text.replace(",", ""))
