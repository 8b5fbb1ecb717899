"""The gallery of known items: names with embeddings, and the best match of an embedding by cosine.

A gallery is `{"model": ..., "sha256": ..., "items": {name: [embedding, ...]}}`; make_gallery.py writes it from image
files. resources/gallery.json comes with the version. A streamer's own one is an exclusive file of the device, which the
cloud cannot read; it is used in its place, and can change without a new version.
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

_loaded: "list[Galleries]" = []


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


class Galleries:
    """The version's gallery, and the device's own one as it was read last."""

    def __init__(self, ctx: "Context") -> None:
        self._shared, self._sha256 = _read(bytes(ctx.resource("gallery.json")), "resources/gallery.json")
        self._own_data: bytes | None = None
        self._own: Gallery | None = None

    def current(self, ctx: "Context") -> Gallery:
        """Return the device's own gallery; the version's one if there is none, or none that can be used.

        An own gallery that is damaged or was made with another embedder is logged once: it would fail every run, and
        the version is not to blame.
        """
        data = ctx.exclusive("gallery.json")
        if data is not self._own_data and data != self._own_data:
            self._own = None
            if data is not None:
                try:
                    self._own = self._usable(data)
                except ValueError as error:
                    ctx.log(f"the device's own gallery is not used: {error}")
        self._own_data = data
        return self._own or self._shared

    def _usable(self, data: bytes) -> Gallery:
        made, sha256 = _read(data, "gallery.json")
        if sha256 != self._sha256:
            raise ValueError("it was made with another embedder than the version's; make it again: make_gallery")
        return made


def gallery(ctx: "Context") -> Gallery:
    """Return the gallery of this run.

    Raises:
        ValueError: resources/gallery.json is not a gallery.
    """
    if not _loaded:
        _loaded.append(Galleries(ctx))
    return _loaded[0].current(ctx)


def _read(data: bytes, name: str) -> "tuple[Gallery, Any]":
    """Return a gallery, and the SHA-256 of the embedder that made it."""
    found = json.loads(data)
    if isinstance(found, dict) and isinstance(found.get("items"), dict):
        return Gallery(found["items"]), found.get("sha256")
    raise ValueError(f'{name} must be {{"items": {{name: [embedding, ...]}}}}')


def _unit(name: str, embedding: "Sequence[float]") -> "list[float]":
    values = [float(value) for value in embedding]
    length = math.sqrt(sum(value * value for value in values))
    if len(values) != EMBEDDING or not 0 < length < math.inf:
        raise ValueError(f"gallery item {name!r}: an embedding must be {EMBEDDING} numbers that are not all 0")
    return [value / length for value in values]
