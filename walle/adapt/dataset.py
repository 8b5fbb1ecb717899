"""Data to adapt a model on: arrays of a `.npz` file, a folder of images by class, or what a function returns."""

from __future__ import annotations

import runpy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from walle import np
from walle.adapt.arrays import read_arrays
from walle.errors import ConfigError

_IMAGES = (".jpg", ".jpeg", ".png")


@dataclass(frozen=True, slots=True)
class Dataset:
    """Inputs, each (samples, ...), and labels (samples); names of the classes, by label, where folders have them."""

    inputs: tuple[Any, ...]
    labels: Any
    classes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return int(self.labels.shape[0])

    def part(self, places: Any) -> tuple[Any, ...]:
        """Return inputs and labels of these samples."""
        return (*(one[places] for one in self.inputs), self.labels[places])


def load_data(source: str, folder: Path, classes: tuple[str, ...] = ()) -> Dataset:
    """Return the data of "train.npz" (the last array has the labels), of a folder with a folder of images for each
    class, or of "data.py:function", which returns inputs and labels.

    `classes` are those of the training data, which number the folders of other data; with none a folder has its own.

    Raises:
        ConfigError: the data does not exist, arrays do not have a row for each sample, or a folder has another class.
    """
    path, _, function = source.partition(":")
    place = folder / path
    if function:
        found = call_function(place, function, source)
        arrays = [np.asarray(one) for one in (found if isinstance(found, tuple | list) else (found,))]
    elif place.is_dir():
        own = tuple(sorted(one.name for one in place.iterdir() if one.is_dir()))
        if classes and (other := sorted(set(own) - set(classes))):
            raise ConfigError(f"{source} has images of {other[0]!r}; the training data has {', '.join(classes)}")
        arrays, classes = _images(place, classes or own), classes or own
    else:
        arrays = list(read_arrays(place).values())
    if len(arrays) < 2:
        raise ConfigError(f"{source} has {len(arrays)} array; it takes inputs and labels")
    counts = {one.shape[0] if one.ndim else 0 for one in arrays}
    if len(counts) > 1 or 0 in counts:
        raise ConfigError(f"{source} has arrays of {' and '.join(map(str, sorted(counts)))} samples")
    return Dataset(tuple(arrays[:-1]), arrays[-1], classes)


def call_function(path: Path, name: str, source: str) -> Any:
    """Return what a function of a Python file gives.

    Raises:
        ConfigError: the file or the function does not exist.
    """
    try:
        names = runpy.run_path(str(path))
    except OSError as error:
        raise ConfigError(f"{source}: {error}") from error
    function = names.get(name)
    if not callable(function):
        raise ConfigError(f"{source}: {path} has no function {name!r}")
    return function()


def _images(folder: Path, classes: tuple[str, ...]) -> list[Any]:
    """Return images (samples, 3 of blue, green and red, height, width) from 0 to 1, and the places of their classes."""
    from walle import cv

    images: list[Any] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        for path in sorted((folder / name).glob("*")):
            if path.suffix.lower() in _IMAGES:
                image = cv.imdecode(path.read_bytes())
                if image is None:
                    raise ConfigError(f"{path} cannot be read as an image")
                if images and image.shape != images[0].shape:
                    raise ConfigError(f"{path} has shape {image.shape}; the others have {images[0].shape}")
                images.append(image)
                labels.append(label)
    if not images:
        raise ConfigError(f"{folder} has no folder of images ({', '.join(_IMAGES)})")
    stacked = np.stack(images).astype("float32") / 255.0
    return [np.moveaxis(stacked, -1, 1), np.asarray(labels, "int64")]
