"""The detectors by ONNX Runtime, OpenCV and NumPy, over all cells at once: what the tasks are compared with."""

import dataclasses
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """Boxes [n, 4] (left, top, right, bottom), scores [n], classes [n] and points [n, k, 2], best first."""

    boxes: NDArray[np.float64]
    scores: NDArray[np.float64]
    classes: NDArray[np.int64]
    points: NDArray[np.float64]


def session(path: Path) -> Any:
    """Return an ONNX Runtime session, with initialisers as constants where the file lists them as inputs too."""
    model = onnx.load(path)
    constants = {one.name for one in model.graph.initializer}
    inputs = [one for one in model.graph.input if one.name not in constants]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def picture(path: Path) -> NDArray[np.uint8]:
    """Return an image file's pixels [height, width, 3] in BGR."""
    image = cv2.imread(str(path))
    assert image is not None, path
    return np.asarray(image, np.uint8)


def outputs(made: Any, inputs: dict[str, Any]) -> dict[str, NDArray[Any]]:
    names = [one.name for one in made.get_outputs()]
    return dict(zip(names, made.run(names, inputs), strict=True))


def letterboxed(image: NDArray[np.uint8], side: int = 320) -> tuple[NDArray[np.float32], float]:
    rows, columns = image.shape[:2]
    scale = min(side / columns, side / rows)
    canvas = np.zeros((side, side, 3), np.float32)
    small = cv2.resize(image, (max(1, round(columns * scale)), max(1, round(rows * scale))))
    canvas[: small.shape[0], : small.shape[1]] = small
    return canvas, scale


def squeezed(image: NDArray[np.uint8], side: int) -> NDArray[np.float32]:
    """Return an image as EfficientNet-Lite's input [1, 3, side, side]; its aspect ratio is not kept."""
    how = cv2.INTER_AREA if image.shape[0] > side else cv2.INTER_LINEAR
    small = cv2.cvtColor(cv2.resize(image, (side, side), interpolation=how), cv2.COLOR_BGR2RGB)
    return np.ascontiguousarray((small.astype(np.float32) - 127) / 128).transpose(2, 0, 1)[None].copy()


def grid(stride: int, side: int = 320) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    rows, columns = np.mgrid[0 : side // stride, 0 : side // stride]
    return columns.ravel().astype(np.float64), rows.ravel().astype(np.float64)


def suppressed(boxes: NDArray[Any], scores: NDArray[Any], overlap: float) -> list[int]:
    """Return what greedy non-maximum suppression keeps, best first, by the matrix of all overlaps."""
    low, high = np.maximum(boxes[:, None, :2], boxes[None, :, :2]), np.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
    both = np.prod(np.clip(high - low, 0, None), axis=2)
    areas = np.prod(boxes[:, 2:] - boxes[:, :2], axis=1)
    overlaps = both / (areas[:, None] + areas[None] - both)
    kept: list[int] = []
    for k in np.argsort(-scores, kind="stable"):
        if not kept or overlaps[k, kept].max() <= overlap:
            kept.append(int(k))
    return kept


def _found(boxes: Any, scores: Any, classes: Any, points: Any, overlap: float) -> Found:
    kept: list[int] = []
    for label in np.unique(classes):
        members = np.flatnonzero(classes == label)
        kept += [int(members[k]) for k in suppressed(boxes[members], scores[members], overlap)]
    order = sorted(kept, key=lambda k: -scores[k])
    return Found(boxes[order], scores[order], classes[order], points[order])


def nanodet(made: Any, image: NDArray[np.uint8], score: float, overlap: float) -> Found:
    canvas, scale = letterboxed(image)
    mean, std = np.array([103.53, 116.28, 123.675], np.float32), np.array([57.375, 57.12, 58.395], np.float32)
    out = outputs(made, {"input.1": ((canvas - mean) / std).transpose(2, 0, 1)[None]})
    boxes, scores = [], []
    for stride in (8, 16, 32):
        x, y = ((part + 0.5) * stride for part in grid(stride))
        logits = out[f"dis_pred_stride_{stride}"][0].reshape(-1, 4, 8).astype(np.float64)
        shares = np.exp(logits - logits.max(axis=2, keepdims=True))
        distances = (shares * np.arange(8)).sum(axis=2) / shares.sum(axis=2) * stride
        left, top, right, bottom = distances.T
        boxes.append(np.stack([x - left, y - top, x + right, y + bottom], axis=1))
        scores.append(out[f"cls_pred_stride_{stride}"][0].astype(np.float64))
    all_boxes, all_scores = np.concatenate(boxes) / scale, np.concatenate(scores)
    strong = np.flatnonzero(all_scores.max(axis=1) > score)
    best = all_scores[strong]
    return _found(all_boxes[strong], best.max(axis=1), best.argmax(axis=1), np.zeros((len(strong), 0, 2)), overlap)


def yunet(made: Any, image: NDArray[np.uint8], score: float, overlap: float) -> Found:
    canvas, scale = letterboxed(image)
    out = outputs(made, {"input": canvas.transpose(2, 0, 1)[None]})
    boxes, scores, points = [], [], []
    for stride in (8, 16, 32):
        x, y = grid(stride)
        box = out[f"bbox_{stride}"][0].astype(np.float64)
        centre = (np.stack([x, y], axis=1) + box[:, :2]) * stride
        half = np.exp(box[:, 2:]) * stride / 2
        boxes.append(np.concatenate([centre - half, centre + half], axis=1))
        scores.append(
            np.sqrt(np.clip(out[f"cls_{stride}"][0, :, 0], 0, 1) * np.clip(out[f"obj_{stride}"][0, :, 0], 0, 1))
        )
        points.append((out[f"kps_{stride}"][0].reshape(-1, 5, 2) + np.stack([x, y], axis=1)[:, None]) * stride)
    all_scores = np.concatenate(scores)
    strong = np.flatnonzero(all_scores > score)
    faces = np.zeros(len(strong), np.int64)
    return _found(
        np.concatenate(boxes)[strong] / scale,
        all_scores[strong],
        faces,
        np.concatenate(points)[strong] / scale,
        overlap,
    )


def ultraface(made: Any, image: NDArray[np.uint8], score: float, overlap: float) -> Found:
    small = cv2.cvtColor(cv2.resize(image, (320, 240)), cv2.COLOR_BGR2RGB).astype(np.float32)
    out = outputs(made, {"input": ((small - 127) / 128).transpose(2, 0, 1)[None]})
    scores = out["scores"][0, :, 1]
    strong = np.flatnonzero(scores > score)
    # Overlaps are those of the 320 x 240 image.
    boxes = out["boxes"][0][strong] * np.array([320, 240, 320, 240])
    found = _found(boxes, scores[strong], np.zeros(len(strong), np.int64), np.zeros((len(strong), 0, 2)), overlap)
    rows, columns = image.shape[:2]
    wide = np.array([columns / 320, rows / 240, columns / 320, rows / 240])
    return dataclasses.replace(found, boxes=found.boxes * wide)


def clipped(boxes: NDArray[np.float64], image: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return boxes (left, top, width, height) within the image."""
    rows, columns = image.shape[:2]
    corners = np.clip(boxes, 0, [columns, rows, columns, rows])
    return np.concatenate([corners[:, :2], corners[:, 2:] - corners[:, :2]], axis=1)
