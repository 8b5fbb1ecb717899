"""Numbers with a unit, as goals have them: "30ms", "5G", "20M", "8.5 GB/s"."""

from __future__ import annotations

import math
import re

from walle.errors import ConfigError

_PREFIXES = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "m": 1e-3, "u": 1e-6, "µ": 1e-6, "n": 1e-9}
_TEXT = re.compile(r"((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)\s*([a-zA-Zµ]*)(?:/s)?")


def quantity(value: object, unit: str, where: str) -> float:
    """Return the number of a text such as "30ms", in the unit without prefix ("s"); a plain number is in that unit.

    A prefix stands alone ("5G") or before the unit ("5GFLOP"); an "i" after it is ignored ("8.5 GiB" is 8.5e9).

    Raises:
        ConfigError: it is not a positive number in that unit; `where` is what the message names.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
    else:
        match = _TEXT.fullmatch(value.strip()) if isinstance(value, str) else None
        factor = None if match is None else _factor(match[2], unit)
        if match is None or factor is None:
            like = f'"5{"m" if unit == "s" else "M"}{unit}"'
            raise ConfigError(f"{where} is {value!r}; give a number of {unit or 'units'}, like {like}")
        number = float(match[1]) * factor
    if not (math.isfinite(number) and number > 0):
        raise ConfigError(f"{where} is {value!r:.80}; it must be above 0, and finite")
    return number


def _factor(text: str, unit: str) -> float | None:
    """Return the factor of a prefix, with the unit or alone; None for another text."""
    same_case = unit == "B"  # "Mb" has bits
    if unit and (text if same_case else text.lower()).endswith(unit if same_case else unit.lower()):
        text = text[: -len(unit)].removesuffix("i")
    factor = _PREFIXES.get(text)
    return None if factor is None or (factor < 1 and unit != "s") else factor
