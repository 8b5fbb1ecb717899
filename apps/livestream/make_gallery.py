"""A gallery of items for the item task, from image files:

    python -m apps.livestream.make_gallery GALLERY.json bottle=front.jpg bottle=side.jpg@120,40,200,380 shoes=shoes.png

An image is the item alone, or has the box left,top,width,height in pixels after an @. Several images of an item help:
each is compared by itself. Push the file with `write_task("item", ..., gallery=...)`.
"""

import argparse
import json
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import walle
from apps.livestream.make_embedder import write_embedder
from apps.livestream.own_models import OwnModels
from apps.livestream.task_files import EMBEDDER, Models, add_model_options, chosen_models, embedder_of, manifest
from walle import cv, np
from walle.errors import ConfigError, WalleError

SIDE = 128
_ITEM = re.compile(r"(?P<name>[^=]+)=(?P<path>.+?)(@(?P<box>\d+,\d+,\d+,\d+))?")


class GalleryError(ConfigError):
    """An image that is not usable for a gallery; `argument` names it."""

    def __init__(self, argument: str, what: str) -> None:
        super().__init__(f"{argument}: {what}")
        self.argument = argument


def embedding(session: walle.Session, image: np.ndarray) -> list[float]:
    """Return the embedding of an item's image, uint8 [height, width, 3] in BGR, as the item task computes it."""
    blob = cv.dnn.blobFromImage(image, 1 / 127.5, (SIDE, SIDE), (127.5, 127.5, 127.5), swapRB=True)
    values: list[float] = session.run({"image": blob})["embedding"].reshape(-1).tolist()
    return values


def item_image(argument: str) -> tuple[str, np.ndarray]:
    """Return the name and the image of NAME=FILE or NAME=FILE@LEFT,TOP,WIDTH,HEIGHT.

    Raises:
        GalleryError: it has another form, the file is not an image, or the box is not in it.
    """
    match = _ITEM.fullmatch(argument)
    if match is None:
        raise GalleryError(argument, "is not of the form NAME=FILE or NAME=FILE@LEFT,TOP,WIDTH,HEIGHT")
    try:
        image = cv.imdecode(Path(match["path"]).read_bytes(), cv.IMREAD_COLOR)
    except OSError as error:
        raise GalleryError(argument, f"cannot be read: {error.strerror}") from error
    except WalleError as error:
        raise GalleryError(argument, str(error)) from error
    if image is None:
        raise GalleryError(argument, "is not a JPEG or PNG image")
    if match["box"]:
        left, top, width, height = map(int, match["box"].split(","))
        if not (width and height and left + width <= image.shape[1] and top + height <= image.shape[0]):
            raise GalleryError(argument, f"the box is not in the image, which has {image.shape[1]} x {image.shape[0]}")
        image = image[top : top + height, left : left + width]
    return match["name"], image


def embedder(models: Models, target: Path) -> Path:
    """Write the embedder of a set of models to `target`; return `target`."""
    if isinstance(models, OwnModels):
        return models.write("embedder", target)
    return write_embedder(models.file(manifest().entries[EMBEDDER]), target)


def make_gallery(arguments: Iterable[str], models: Models) -> dict[str, Any]:
    """Return the gallery of these items: {"model", "sha256", "items": {name: [embedding, ...]}}.

    Raises:
        GalleryError: an image is not usable.
        ModelFileError: the embedder's model is not in the folder.
    """
    name, sha256 = embedder_of(models)
    with tempfile.TemporaryDirectory() as folder:
        session = walle.Session(embedder(models, Path(folder, "embedder.walle")))
        items: dict[str, list[list[float]]] = {}
        for argument in arguments:
            item, image = item_image(argument)
            items.setdefault(item, []).append([round(value, 6) for value in embedding(session, image)])
    return {"model": name, "sha256": sha256, "items": items}


def main() -> None:
    """Write a gallery."""
    parser = argparse.ArgumentParser(description="Write a gallery of items from image files.")
    parser.add_argument("gallery", type=Path)
    parser.add_argument("items", nargs="+", metavar="NAME=FILE[@LEFT,TOP,WIDTH,HEIGHT]")
    add_model_options(parser)
    arguments = parser.parse_args()
    made = make_gallery(arguments.items, chosen_models(arguments))
    arguments.gallery.write_text(json.dumps(made) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
