"""Load tests that were run in a checkout, as they recorded themselves."""

import dataclasses
import json
import logging
import os
from pathlib import Path

_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadTest:
    """A load test that has ended. `link` leads from the report of figures to its page."""

    title: str
    command: str
    summary: str
    wrong: int  # results that must not be
    ended_s: float
    link: str


def read_load_tests(folder: Path, report: Path) -> list[LoadTest]:
    """Return the load tests whose records are in a folder, by title; those that this version cannot read are left out.

    Links are relative to the folder of `report`.
    """
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            link = os.path.relpath(folder / Path(str(record.pop("page"))).name, report.parent)
            found.append(LoadTest(**record, link=link))
        except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
            _LOG.warning("the load test in %s is left out, run it again: %r", path, error)
    return sorted(found, key=lambda one: one.title)
