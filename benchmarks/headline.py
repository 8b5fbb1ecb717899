"""Headline of a benchmark: its last line, with the number that a reader of the paper looks for, and the peers'."""

import sys
from collections.abc import Mapping
from typing import Literal


def print_headline(
    what: str,
    *,
    unit: str,
    better: Literal["lower", "higher"],
    ours: float,
    peers: Mapping[str, float | str] | None = None,
) -> None:
    """Print the line that `walle figures` shows in its first table; a benchmark prints one or two, last.

    `what` says what was measured, under which conditions. A peer has a number in the same unit, or says why it has
    none: "not installed", "failed: reason".

    Raises:
        ValueError: a number is not finite.
    """
    from walle.cli.figures.headline import Headline  # imported late: some benchmarks measure their own memory

    headline = Headline(what=what, unit=unit, better=better, ours=ours, peers=dict(peers or {}))
    sys.stdout.write(headline.to_line() + "\n")
    sys.stdout.flush()
