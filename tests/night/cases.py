"""Values of parametrized tests of which `make test` runs the others."""

from typing import Any

import pytest


def at_night(*values: Any) -> list[Any]:
    """Return the values as parameters that run in `make test-night` only; a tuple has one for each name."""
    return [pytest.param(*(one if isinstance(one, tuple) else (one,)), marks=pytest.mark.night) for one in values]
