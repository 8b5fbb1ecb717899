"""Texts of eight packages of Python's standard library, and a small network that tells the package.

A sample is 24 words of a docstring, as places among the commonest 1,000 words; every fifth docstring is tested. The
texts are those of the Python that runs, so that figures change a little with its version.
"""

from __future__ import annotations

import ast
import re
import sysconfig
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

from walle import nn, np

PACKAGES = ("asyncio", "email", "http", "importlib", "logging", "tkinter", "unittest", "xml")
_WORDS, _LENGTH = 1000, 24
_TESTED = 5


class Network(nn.Module):
    """Embeddings, two convolutions of three words each with a shortcut, and a dense layer."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.words = nn.Embedding(_WORDS + 1, width)
        self.first = nn.Sequential(nn.Conv1d(width, 2 * width, 3, padding=1), nn.BatchNorm1d(2 * width), nn.ReLU())
        self.second = nn.Sequential(nn.Conv1d(2 * width, 2 * width, 3, padding=1), nn.BatchNorm1d(2 * width))
        self.dense = nn.Linear(2 * width, len(PACKAGES))

    def forward(self, words: Any) -> Any:
        x = self.first(self.words(words).transpose(0, 2, 1))
        return self.dense(nn.functional.relu(self.second(x) + x).mean(2))


def train() -> tuple[Any, Any]:
    return _data()[0]


def test() -> tuple[Any, Any]:
    return _data()[1]


@cache
def _data() -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    texts: tuple[list[tuple[list[str], int]], list[tuple[list[str], int]]] = ([], [])
    library = Path(sysconfig.get_path("stdlib"))
    at = 0
    for label, package in enumerate(PACKAGES):
        for path in sorted((library / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    words = re.findall("[a-z]+", (ast.get_docstring(node) or "").lower())
                    at += 1
                    texts[at % _TESTED == 0].append((words, label))
    common = Counter(word for words, _ in texts[0] for word in words).most_common(_WORDS)
    places = {word: place + 1 for place, (word, _) in enumerate(common)}
    learnt, tested = (_samples(part, places) for part in texts)
    return learnt, tested


def _samples(texts: list[tuple[list[str], int]], places: dict[str, int]) -> tuple[Any, Any]:
    """Return places (samples, words), 0 for other words, and labels."""
    rows, labels = [], []
    for words, label in texts:
        for first in range(0, len(words) - _LENGTH + 1, _LENGTH):
            rows.append([places.get(word, 0) for word in words[first : first + _LENGTH]])
            labels.append(label)
    return np.asarray(rows, "int64"), np.asarray(labels, "int64")
