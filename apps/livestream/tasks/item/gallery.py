"""The gallery of known items: names with embeddings, and the best match of an embedding by cosine.

resources/gallery.json is `{"model": ..., "sha256": ..., "items": {name: [embedding, ...]}}`; make_gallery.py writes it
from image files.
"""

import json
import math

import walle.np as np

TYPE_CHECKING = False  # type checkers take it for true
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from walle.task import Context

EMBEDDING = 256
MAX_EMBEDDINGS = 10_000

_loaded: "list[Gallery]" = []


class Gallery:
    """Embeddings of named items; `names` has one entry for each embedding."""

    def __init__(self, items: "dict[str, Sequence[Sequence[float]]]") -> None:
        self.names: list[str] = []
        rows: list[list[float]] = []
        for name, embeddings in items.items():
            for embedding in embeddings:
                self.names.append(name)
                rows.append(_unit(name, embedding))
        if len(rows) > MAX_EMBEDDINGS:
            raise ValueError(f"the gallery has {len(rows)} embeddings, at most {MAX_EMBEDDINGS} are allowed")
        self._matrix = np.asarray(rows, dtype="float32") if rows else None

    def best(self, embedding: "np.ndarray") -> "dict[str, Any] | None":
        """Return the item most like an embedding [256]: {"name", "likeness", "margin"}; None of an empty gallery.

        `likeness` is the cosine; `margin` is what it is above the best one of another name, or above 0 if there is
        none.
        """
        length = math.sqrt(float(np.sum(embedding * embedding)))
        if self._matrix is None or not length:
            return None
        cosines: list[float] = (np.matmul(self._matrix, embedding.reshape(EMBEDDING, 1)) / length).reshape(-1).tolist()
        first = max(range(len(cosines)), key=cosines.__getitem__)
        name = self.names[first]
        others = [cosine for other, cosine in zip(self.names, cosines, strict=True) if other != name]
        margin = cosines[first] - max([*others, 0.0])
        return {"name": name, "likeness": round(cosines[first], 4), "margin": round(margin, 4)}


def gallery(ctx: "Context") -> Gallery:
    """Return the task's gallery, read once.

    Raises:
        ValueError: resources/gallery.json is not a gallery.
    """
    if not _loaded:
        data = json.loads(bytes(ctx.resource("gallery.json")))
        items = data.get("items") if isinstance(data, dict) else None
        if not isinstance(items, dict):
            raise ValueError('resources/gallery.json must be {"items": {name: [embedding, ...]}}')
        _loaded.append(Gallery(items))
    return _loaded[0]


def _unit(name: str, embedding: "Sequence[float]") -> "list[float]":
    values = [float(value) for value in embedding]
    length = math.sqrt(sum(value * value for value in values))
    if len(values) != EMBEDDING or not 0 < length < math.inf:
        raise ValueError(f"gallery item {name!r}: an embedding must be {EMBEDDING} numbers that are not all 0")
    return [value / length for value in values]
