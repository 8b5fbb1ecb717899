"""Graphs made of TFLite models: each operator against NumPy and OpenCV, and what is refused; no model's file."""

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

import walle
from apps.livestream.tflite import TfliteError, TfliteModel, TfliteOperator
from apps.livestream.tflite_graph import TfliteGraph
from walle.engine_ext.model import GraphBuilder

SOURCE, CONSTANT = 0, 100
RNG = np.random.default_rng(3)
IMAGE = RNG.standard_normal((1, 6, 8, 4)).astype(np.float32)  # TFLite's layout


def run(folder: Path, operators: list[TfliteOperator], *constants: Any, image: NDArray[Any] = IMAGE) -> NDArray[Any]:
    """Return the last operator's result, an image in TFLite's layout."""
    arrays = {CONSTANT + number: np.asarray(one) for number, one in enumerate(constants)}
    result = operators[-1].result
    model = TfliteModel(
        source=SOURCE, input_shape=image.shape, operators=tuple(operators), constants=arrays, results=(result,)
    )
    graph = GraphBuilder("made")
    graph.output("y", TfliteGraph(graph, model).values[result])
    graph.save(folder / "made.walle")
    session = walle.Session(folder / "made.walle")
    found = np.asarray(session.run({"image": np.ascontiguousarray(image.transpose(0, 3, 1, 2))})["y"])
    return found.transpose(0, 2, 3, 1) if len(operators[-1].result_shape) == 4 else found


def one(kind: str, shape: tuple[int, ...], *inputs: int, result: int = 1, **more: Any) -> TfliteOperator:
    return TfliteOperator(kind=kind, inputs=(SOURCE, *inputs), result=result, result_shape=shape, **more)


def test_prelu_has_a_slope_for_each_channel(tmp_path: Path) -> None:
    slopes = np.asarray([0.5, 0.0, -1.0, 2.0], np.float32).reshape(1, 1, 4)
    found = run(tmp_path, [one("PRelu", IMAGE.shape, CONSTANT)], slopes)
    np.testing.assert_allclose(found, np.where(IMAGE > 0, IMAGE, IMAGE * slopes), rtol=1e-6)


def test_pad_adds_channels_at_the_end(tmp_path: Path) -> None:
    ends = np.asarray([[0, 0], [1, 0], [0, 2], [0, 3]], np.int32)
    found = run(tmp_path, [one("Pad", (1, 7, 10, 7), CONSTANT)], ends)
    np.testing.assert_array_equal(found, np.pad(IMAGE, ends))


def test_max_pool_gives_the_maximum_of_each_window(tmp_path: Path) -> None:
    found = run(tmp_path, [one("MaxPool", (1, 3, 4, 4), padding="SAME", strides=(2, 2), window=(2, 2))])
    np.testing.assert_array_equal(found, IMAGE.reshape(1, 3, 2, 4, 2, 4).max((2, 4)))


def test_resize_takes_the_centres_of_pixels(tmp_path: Path) -> None:
    found = run(tmp_path, [one("ResizeBilinear", (1, 12, 16, 4))])
    np.testing.assert_allclose(found[0], cv2.resize(IMAGE[0], (16, 12), interpolation=cv2.INTER_LINEAR), atol=1e-5)


@pytest.mark.parametrize("side", [7, 8])
def test_a_convolution_with_the_padding_same_puts_an_odd_one_at_the_end(tmp_path: Path, side: int) -> None:
    image = RNG.standard_normal((1, side, side, 1)).astype(np.float32)
    weights = RNG.standard_normal((1, 5, 5, 1)).astype(np.float32)
    shape = (1, 4, 4, 1)
    operator = one("DepthwiseConv", shape, CONSTANT, CONSTANT + 1, padding="SAME", strides=(2, 2), activation="Relu6")
    found = run(tmp_path, [operator], weights, np.asarray([0.5], np.float32), image=image)
    total = 3 * 2 + 5 - side
    padded = np.pad(image[0, ..., 0], (total // 2, total - total // 2))
    expected = [
        [(padded[2 * i : 2 * i + 5, 2 * j : 2 * j + 5] * weights[0, ..., 0]).sum() + 0.5 for j in range(4)]
        for i in range(4)
    ]
    np.testing.assert_allclose(found[0, ..., 0], np.clip(expected, 0, 6), atol=1e-5)


def test_an_image_is_turned_back_before_it_is_reshaped_and_joined(tmp_path: Path) -> None:
    rows = one("Reshape", (1, 48, 4))
    joined = TfliteOperator(kind="Concat", inputs=(1, 1), result=2, result_shape=(1, 96, 4), axis=1)
    found = run(tmp_path, [rows, joined])
    np.testing.assert_array_equal(found, np.concatenate([IMAGE.reshape(1, 48, 4)] * 2, axis=1))


def test_an_image_is_added_to_another_one(tmp_path: Path) -> None:
    slopes = one("PRelu", IMAGE.shape, CONSTANT)
    total = TfliteOperator(kind="Add", inputs=(SOURCE, 1), result=2, result_shape=IMAGE.shape, activation="Relu")
    found = run(tmp_path, [slopes, total], np.zeros((1, 1, 4), np.float32))
    np.testing.assert_allclose(found, np.maximum(IMAGE + np.maximum(IMAGE, 0), 0), rtol=1e-6)


@pytest.mark.parametrize(
    ("operators", "message"),
    [
        ([one("Add", IMAGE.shape, CONSTANT)], "Add 1: input 1 is absent or a constant"),
        (
            [one("MaxPool", (1, 3, 4, 4), window=(2, 2), strides=(2, 2)), one("Add", IMAGE.shape, 1, result=2)],
            "Add 2: shapes",
        ),
        ([TfliteOperator(kind="MaxPool", inputs=(), result=1, result_shape=(1, 1, 1, 4))], "input 0 is absent"),
        ([one("AveragePool", (1, 3, 4, 4), window=(2, 2))], "is not a pool over the whole image"),
        ([one("Concat", (1, 6, 8, 8), SOURCE, axis=3)], "Concat 1 of images"),
        ([one("PRelu", IMAGE.shape, CONSTANT)], "its slopes are not one for each channel"),
        ([one("PRelu", IMAGE.shape)], "input 1 is absent or not a constant"),
        ([one("Pad", IMAGE.shape, CONSTANT)], "its padding is not two numbers for each axis"),
        ([one("Reshape", (1, 1, 48, 4))], "Reshape 1 makes an image"),
        ([one("Softmax", IMAGE.shape)], "Softmax 1 of an image"),
        ([TfliteOperator(kind="Softmax", inputs=(9,), result=1, result_shape=(1, 4))], "input 0 is absent"),
    ],
)
def test_an_unsupported_operator_is_named(tmp_path: Path, operators: list[TfliteOperator], message: str) -> None:
    with pytest.raises(TfliteError, match=message):
        run(tmp_path, operators, np.zeros(4, np.float32))
