"""Pages that visitors of a web shop saw, as histories and what came next: data of the test of a recommender."""

import collections
import csv
import gzip
from pathlib import Path
from typing import Any, NamedTuple

import numpy

HISTORY = 10  # pages of a history; a shorter one has zeros first
TRAINED = 0.8  # share of the hits, the first in time


class Hits(NamedTuple):
    """Pages by number, int64: the last ones that a visitor saw (count, HISTORY), and the next one (count)."""

    history: Any
    page: Any


class ShopPages(NamedTuple):
    """Hits to train on, and later ones of pages that those have; how often each page comes in the first."""

    trained: Hits
    later: Hits
    popularity: Any  # (pages + 1); page 0 is none, or one that is unknown


def read_pages(path: Path) -> ShopPages:
    """Return the hits of the log; one of the page that the visitor is already on does not count."""
    with gzip.open(path, "rt") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: (row["timestamp"], row["event_id"]))
    seen = collections.defaultdict[str, list[str]](list)
    hits: list[tuple[list[str], str]] = []
    for row in rows:
        pages, page = seen[row["user"]], row["page_name"]
        if page and page not in pages[-1:]:
            if pages:
                hits.append((pages[-HISTORY:], page))
            pages.append(page)
    cut = int(TRAINED * len(hits))
    counts = collections.Counter(page for _, page in hits[:cut]).most_common()
    numbers = {page: number for number, (page, _) in enumerate(counts, start=1)}

    def numbered(part: list[tuple[list[str], str]]) -> Hits:
        known = [(pages, numbers[page]) for pages, page in part if page in numbers]
        history = numpy.zeros((len(known), HISTORY), "int64")
        for line, (pages, _) in zip(history, known, strict=True):
            line[HISTORY - len(pages) :] = [numbers.get(page, 0) for page in pages]
        return Hits(history, numpy.asarray([page for _, page in known], "int64"))

    popularity = numpy.asarray([0, *(count for _, count in counts)], "float64")
    return ShopPages(numbered(hits[:cut]), numbered(hits[cut:]), popularity)
