"""Order of the tests' folders: those whose tests start systems come first, and short tests last.

Workers take file after file: with long ones at the end, some workers would wait for the last one. `make test` tells
xdist to keep this order; by default it takes the files with most tests first, which here are those of the shortest.
"""

import pytest

FIRST = (
    "system",
    "actors",
    "apps",
    "dashboard",
    "packaging",
    "security",
    "benchmarks",
    "device",
    "deploy",
    "cloud",
    "cli",
)
LAST = ("engine_ext",)


def place(path: str) -> int:
    """Return the place of a file of tests in the order, by its folder: "tests/FOLDER/..."."""
    folder = path.split("/", 2)[1] if path.count("/") > 1 else ""
    if folder in FIRST:
        return FIRST.index(folder)
    return len(FIRST) + (folder in LAST)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: place(item.nodeid))
