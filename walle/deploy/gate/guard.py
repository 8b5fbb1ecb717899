"""Guards of a release: bounds on numbers of its runs, such as `latency_ms < 1.2x`, and their parser (§6). Pure."""

import dataclasses
import math
import re
from typing import Self

from walle.errors import DeployError
from walle.protocol import METRIC_NAME_RULE, is_metric_name

MAX_GUARDS = 4
MAX_GUARD_CHARS = 120
_FORM = re.compile(r"\s*(?P<metric>[^\s<>]+)\s*(?P<sign>[<>])\s*(?P<number>[^\sx]+)(?P<relative>\s*x)?\s*")
_MOST = 1e100
_HOW = "write METRIC < NUMBERx or METRIC > NUMBERx, beside the version before, or either without x"


class GuardError(DeployError):
    """A guard that cannot be used."""

    def __init__(self, text: str, what: str) -> None:
        super().__init__(text, what)
        self.text = text
        self.what = what

    def __str__(self) -> str:
        return f"guard {self.text[:MAX_GUARD_CHARS]!r}: {self.what}"


@dataclasses.dataclass(frozen=True)
class Guard:
    """A bound on a metric of a typical device: of half of the devices, or more.

    A relative one is `bound` times what a comparable device with the version before has. Of a number below 0 it is as
    far on the same side: `x > 0.9x` allows -11 where the version before has -10.
    """

    metric: str
    is_least: bool  # the metric must be above the bound; else below it
    bound: float
    is_relative: bool

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the guard of a text such as `latency_ms < 1.2x` or `confidence > 0.6`.

        Raises:
            GuardError: it is not of this form, or an equal version would be outside of it.
        """
        found = _FORM.fullmatch(text) if len(text) <= MAX_GUARD_CHARS else None
        if found is None:
            raise GuardError(text, f"is not a guard; {_HOW}")
        metric, is_least, is_relative = found["metric"], found["sign"] == ">", found["relative"] is not None
        if not is_metric_name(metric):
            raise GuardError(text, f"{metric[:80]!r} is not a metric's name ({METRIC_NAME_RULE})")
        try:
            bound = float(found["number"])
        except ValueError:
            raise GuardError(text, f"{found['number'][:40]!r} is not a number; {_HOW}") from None
        if not math.isfinite(bound) or abs(bound) > _MOST:
            raise GuardError(text, f"{found['number'][:40]} is not a finite number up to {_MOST:g}")
        if is_relative and is_least and not 0 <= bound < 1:
            raise GuardError(text, f"{bound:g}x is not from 0x to below 1x: an equal version would be outside of it")
        if is_relative and not is_least and bound <= 1:
            raise GuardError(text, f"{bound:g}x is not above 1x: an equal version would be outside of it")
        return cls(metric, is_least, bound, is_relative)

    def __str__(self) -> str:
        return f"{self.metric} {'>' if self.is_least else '<'} {self.bound:g}{'x' if self.is_relative else ''}"

    def is_worse(self, value: float, before: float = 0.0, *, part: float = 1.0) -> bool:
        """Return whether a device's value is outside of the bound, beside that of a device with the version before.

        With `part`, a relative bound is only that part of the way from an equal value.
        """
        bound = self.bound
        if self.is_relative:
            bound = before + part * (self.bound - 1) * abs(before)
        return value < bound if self.is_least else value > bound


def parse_guards(texts: tuple[str, ...]) -> tuple[Guard, ...]:
    """Return the guards of a release. Raises GuardError, also for two of one kind, and for too many."""
    if len(texts) > MAX_GUARDS:
        raise GuardError(texts[MAX_GUARDS], f"is one too many: a release may have {MAX_GUARDS} guards")
    guards = tuple(Guard.parse(text) for text in texts)
    for at, guard in enumerate(guards):
        if any(dataclasses.replace(one, bound=guard.bound) == guard for one in guards[:at]):
            raise GuardError(texts[at], f"is the second bound of this kind on {guard.metric}")
    return guards
