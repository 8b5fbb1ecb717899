"""Examples of properties: `make test` tries a share of those that `make test-night` tries.

A property's own number of examples is that of the night. Explicit examples, and failures that Hypothesis kept, run in
any case.
"""

from typing import Any, Final

import hypothesis
import pytest

_FEWEST: Final = 10
# Hypothesis has no public way to change the settings of a test later.
_SETTINGS: Final = "_hypothesis_internal_use_settings"


def _reduce(owner: Any, name: str, share: float) -> None:
    own = vars(owner).get(name)
    if isinstance(own, hypothesis.settings):
        fewer = max(min(_FEWEST, own.max_examples), round(own.max_examples * share))
        setattr(owner, name, hypothesis.settings(own, max_examples=fewer))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--examples", type=float, default=1.0, metavar="SHARE", help="share of each property's examples")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    share = config.getoption("--examples")
    if share == 1.0:
        return
    functions = [item for item in items if isinstance(item, pytest.Function)]
    for test in {id(item.function): item.function for item in functions}.values():
        _reduce(test, _SETTINGS, share)
    for machine in {item.cls for item in functions if item.cls is not None}:
        _reduce(machine, "settings", share)
