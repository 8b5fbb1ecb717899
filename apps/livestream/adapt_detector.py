"""The app's own item detector in three sizes, by `walle.adapt`: `python -m apps.livestream.adapt_detector FOLDER`.

The given detector labels drawn frames (drawing.py) itself: smaller ones learn its outputs. `make`, `train`, `test`,
`loss` and `agreement` are what a file of goals names (GOALS). task_files.py makes variants of the item task of FOLDER.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import walle.np as wnp
from apps.livestream import drawing
from apps.livestream.own_models import SIDE, STAGES, STRIDES, weights
from walle import adapt, nn
from walle.adapt.goals.config import parse_config

FRAMES, TEST_FRAMES = 384, 64
BOX_OVERLAP = 0.5  # intersection over union of boxes that agree
_SCORE = 0.4  # least score of an item, as in the task's settings
LABELS = ("person", *drawing.ARTICLES)  # order of the scores
_PERSON = 0
_REACH = 4.0  # limit of the logarithm of a distance in strides
_DRAWN = 0.75  # share of frames with an article
_SHAPES = ((320, 180), (320, 240), (320, 320), (180, 320), (240, 320))  # width and height
GOALS = """\
model = "adapt_detector.py:make"
data = {train = "adapt_detector.py:train", test = "adapt_detector.py:test"}
seed = 1
[training]
loss = "adapt_detector.py:loss"
metric = "adapt_detector.py:agreement"
steps = STEPS
batch = 4
learning_rate = 0.001
[algorithm]
name = "morphnet"
init_reg_strength = 4.0
[goals.middle]
operations = "MIDDLE"
[goals.low]
operations = "LOW"
"""

type Frames = NDArray[np.float32]


class Detector(nn.Module):
    """The detector of own_models.py; its layers have the names of its weights, with `_` for `.`.

    Returns logits [n, 2100, classes] and the logarithms of distances in strides [n, 2100, 4].
    """

    def __init__(self, given: dict[str, NDArray[np.float32]]) -> None:
        super().__init__()
        for name in sorted({key.rpartition(".")[0] for key in given}):
            w = given[f"{name}.w"]
            groups = w.shape[0] if w.shape[1] == 1 else 1
            kernel, stride = w.shape[2], 2 if name == "stem" else _stride(name)
            layer = nn.Conv2d(w.shape[1] * groups, w.shape[0], kernel, stride, kernel // 2, groups=groups)
            layer.load_state_dict({"weight": w, "bias": given[f"{name}.b"]})
            setattr(self, name.replace(".", "_"), layer)
        self.twice = nn.Upsample(scale_factor=2, mode="nearest")

    def forward(self, image: Any) -> tuple[Any, Any]:
        def conv(x: Any, name: str) -> Any:
            return nn.functional.relu(getattr(self, name)(x))

        x, levels = conv(image, "stem"), []
        for stage, blocks in STAGES.items():
            for block in range(len(blocks)):
                x = conv(conv(x, f"{stage}_{block}_depth"), f"{stage}_{block}_point")
            levels.append(x)
        lateral = [conv(level, f"lateral_{at}") for at, level in enumerate(levels[1:])]
        for at in (1, 0):
            lateral[at] = lateral[at] + self.twice(lateral[at + 1])
        rows = []
        for at, level in enumerate(lateral):
            y = level
            for block in range(2):
                y = conv(conv(y, f"head_{at}_{block}_depth"), f"head_{at}_{block}_point")
            y = getattr(self, f"out_{at}")(y)
            rows.append(y.reshape(y.shape[0], y.shape[1], -1).transpose(0, 2, 1))
        joined = wnp.concatenate(rows, axis=1)
        return joined[:, :, : len(LABELS)], wnp.clip(joined[:, :, len(LABELS) :], -_REACH, _REACH)


def _stride(name: str) -> int:
    """Return the stride of a layer "s8.0.depth"."""
    stage, _, rest = name.partition(".")
    block, _, part = rest.partition(".")
    return STAGES[stage][int(block)][1] if stage in STAGES and part == "depth" else 1


def make() -> Detector:
    """Return the app's item detector."""
    return Detector(weights("item"))


def train() -> tuple[Frames, Frames]:
    """Return drawn frames and the detector's outputs on them; see `labelled`."""
    return labelled(FRAMES, 1)


def test() -> tuple[Frames, Frames]:
    """Return other frames, of articles of other seeds."""
    return labelled(TEST_FRAMES, 2)


def labelled(count: int, seed: int) -> tuple[Frames, Frames]:
    """Return frames [n, 3, 320, 320] as the model takes them, and its probabilities and logarithms [n, 2100, 10]."""
    frames = drawn(count, seed)
    return frames, labels_of(frames)


def labels_of(frames: Frames) -> Frames:
    """Return the probabilities and logarithms that the given detector has for frames."""
    model = make()
    found = []
    for start in range(0, len(frames), 8):
        logits, reach = (np.asarray(part) for part in model(frames[start : start + 8]))
        found.append(np.concatenate([1 / (1 + np.exp(-logits)), reach], axis=2))
    return np.concatenate(found).astype(np.float32)


def drawn(count: int, seed: int) -> Frames:
    """Return frames of several shapes, padded as by the task, before plain rectangles: a presenter in half of them, an
    article in most, sometimes in a hand.
    """
    rng = np.random.default_rng(seed)
    made = np.zeros((count, SIDE, SIDE, 3), np.float32)
    names = list(drawing.ARTICLES)
    for at in range(count):
        width, height = _SHAPES[int(rng.integers(len(_SHAPES)))]
        image = made[at, :height, :width]
        image[:] = _gradient(rng, height)
        for _ in range(int(rng.integers(4))):
            left, top = int(rng.integers(width)), int(rng.integers(height))
            image[top : top + int(rng.integers(20, 120)), left : left + int(rng.integers(20, 120))] = rng.uniform(
                30, 230, 3
            )
        if rng.random() < 0.5:
            _put(image, drawing.presenter(int(rng.integers(120, 300)), rng).image, _place(image, rng))
        if rng.random() < _DRAWN:
            name, size = names[int(rng.integers(len(names)))], int(rng.integers(60, 190))
            x, y = _place(image, rng)
            _put(image, drawing.ARTICLES[name](size, rng).image, (x, y))
            if rng.random() < 0.5:
                _put(image, drawing.hand(int(1.2 * size), rng).image, (x, y + size // 2))
        image += rng.normal(0, rng.uniform(0, 5), image.shape)
    return np.ascontiguousarray(np.clip(made, 0, 255).transpose(0, 3, 1, 2)) / 127.5 - 1


def _gradient(rng: np.random.Generator, height: int) -> Frames:
    """Return rows from one colour to another, [height, 1, 3]."""
    first, last = rng.uniform(30, 230, (2, 1, 3))
    share = np.linspace(0, 1, height)[:, None, None]
    rows: Frames = (first + (last - first) * share).astype(np.float32)
    return rows


def _place(image: Frames, rng: np.random.Generator) -> tuple[int, int]:
    """Return a place in the inner part of an image, x and y."""
    height, width = image.shape[:2]
    return int(rng.uniform(0.15, 0.85) * width), int(rng.uniform(0.15, 0.85) * height)


def _put(image: Frames, sprite: NDArray[np.uint8], middle: tuple[int, int]) -> None:
    """Lay a sprite over an image."""
    size = sprite.shape[0]
    x, y = middle[0] - size // 2, middle[1] - size // 2
    x0, y0, x1, y1 = max(x, 0), max(y, 0), min(x + size, image.shape[1]), min(y + size, image.shape[0])
    if x0 >= x1 or y0 >= y1:
        return
    part = sprite[y0 - y : y1 - y, x0 - x : x1 - x].astype(np.float32)
    weight = part[..., 3:] / 255
    image[y0:y1, x0:x1] = image[y0:y1, x0:x1] * (1 - weight) + part[..., :3] * weight


def loss(outputs: Any, labels: Any) -> Any:
    """Return cross-entropy with the given detector's scores, plus the error of distances where it sees something."""
    logits, reach = outputs
    scores, wanted = labels[:, :, : len(LABELS)], labels[:, :, len(LABELS) :]
    entropy = wnp.maximum(logits, 0.0) - logits * scores + wnp.log(1.0 + wnp.exp(-wnp.abs(logits)))
    seen = wnp.max(scores, axis=2, keepdims=True)
    per_frame = wnp.sum(entropy) + 2.0 * wnp.sum(wnp.abs(reach - wanted) * seen)
    return per_frame / (20.0 * logits.shape[0])


def agreement(outputs: Any, labels: Any) -> float:
    """Return the share of frames whose best item (no person) is that of the labels: class, and boxes that overlap; or
    in which neither has one.
    """
    logits, reach = (np.asarray(part) for part in outputs)
    given = np.asarray(labels)
    own = [_best(*pair) for pair in zip(1 / (1 + np.exp(-logits)), reach, strict=True)]
    wanted = [_best(one[:, : len(LABELS)], one[:, len(LABELS) :]) for one in given]
    return sum(_agree(*pair) for pair in zip(own, wanted, strict=True)) / len(own)


def _best(scores: Frames, reach: Frames) -> tuple[int, Frames] | None:
    """Return class and box [left, top, right, bottom] of the best item of a frame."""
    items = scores.copy()
    items[:, _PERSON] = 0
    cell, label = divmod(int(items.argmax()), len(LABELS))
    if items[cell, label] < _SCORE:
        return None
    first = 0
    for stride in STRIDES:
        side = SIDE // stride
        if cell < first + side * side:
            row, column = divmod(cell - first, side)
            centre = np.array([column + 0.5, row + 0.5]) * stride
            distances = np.exp(reach[cell]) * stride
            return label, np.concatenate([centre - distances[:2], centre + distances[2:]])
        first += side * side
    raise AssertionError(cell)


def _agree(one: tuple[int, Frames] | None, other: tuple[int, Frames] | None) -> bool:
    if one is None or other is None:
        return one is other
    (label, a), (wanted, b) = one, other
    inner = np.prod(np.clip(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0, None))
    return label == wanted and inner >= BOX_OVERLAP * (np.prod(a[2:] - a[:2]) + np.prod(b[2:] - b[:2]) - inner)


def save(model: Path, target: Path) -> None:
    """Write the weights of an adapted model by the names of own_models.py, as float16."""
    found: dict[str, Any] = {}
    for name, parameter in nn.from_onnx(model).named_parameters():
        layer, _, kind = name.rpartition(".")
        if kind in ("weight", "bias"):
            found[f"{layer.replace('_', '.')}.{kind[0]}"] = np.asarray(parameter.data).astype(np.float16)
    np.savez(target, **found)


def main() -> None:
    """Adapt the detector, write the sizes, and print their costs."""
    parser = argparse.ArgumentParser(description="Make the item detector of the livestream app in three sizes.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=1500, help="training steps for each size")
    parser.add_argument("--middle", default="90M", help="multiply-adds of the size for devices of performance middle")
    parser.add_argument("--low", default="45M", help="the same of performance low")
    arguments = parser.parse_args()
    text = GOALS.replace("STEPS", str(arguments.steps)).replace("MIDDLE", arguments.middle)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    (config,) = parse_config(text.replace("LOW", arguments.low), Path(__file__).parent, "GOALS", is_json=False)
    with tempfile.TemporaryDirectory() as made:
        (outcome,) = adapt.run(config, made)
        for one in outcome.fitted:
            save(Path(made) / one.file, arguments.folder / f"item-{one.goal}.npz")
    rows = [("given", outcome.whole), *((one.goal, one.costs) for one in outcome.fitted)]
    for name, costs in rows:
        cells = f"{costs['operations'] / 1e6:6.1f}M operations {costs['parameters'] / 1e3:6.1f}k parameters"
        sys.stdout.write(f"{name:8} {cells}  {costs['accuracy']:.1%} agree\n")
    sys.stdout.write(f"{outcome.seconds:.0f} s\n")


if __name__ == "__main__":
    main()
