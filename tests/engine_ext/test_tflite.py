"""TFLite models: each operator against NumPy and OpenCV, made files that are converted, damaged and hostile ones."""

import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from typer.testing import CliRunner

import walle
from tests.sim.tflite_files import Operator, Tensor, tflite
from walle.cli import app
from walle.engine_ext.conversion import ConvertLimits
from walle.engine_ext.conversion.job import Job
from walle.engine_ext.errors import ModelError, UnsupportedError
from walle.engine_ext.model import GraphBuilder
from walle.engine_ext.tflite_import import job
from walle.engine_ext.tflite_import.graph import TfliteGraph
from walle.engine_ext.tflite_import.read import TfliteModel, TfliteOperator, read_tflite

SOURCE, CONSTANT = 0, 100
RNG = np.random.default_rng(3)
WEIGHTS = RNG.standard_normal((4, 1, 1, 4)).astype(np.float32)
BIAS = np.asarray([0.5, 0, 1, 2], np.float32)
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
    paddings = np.asarray([[0, 0], [1, 0], [0, 2], [0, 3]], np.int32)
    found = run(tmp_path, [one("Pad", (1, 7, 10, 7), CONSTANT)], paddings)
    np.testing.assert_array_equal(found, np.pad(IMAGE, paddings))


def test_max_pool_gives_the_maximum_of_each_window(tmp_path: Path) -> None:
    found = run(tmp_path, [one("MaxPool", (1, 3, 4, 4), padding="SAME", strides=(2, 2), window=(2, 2))])
    np.testing.assert_array_equal(found, IMAGE.reshape(1, 3, 2, 4, 2, 4).max((2, 4)))


def test_resize_takes_the_centres_of_pixels(tmp_path: Path) -> None:
    found = run(tmp_path, [one("ResizeBilinear", (1, 12, 16, 4), CONSTANT)], np.asarray([12, 16], np.int32))
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


def test_a_batch_of_images_is_refused(tmp_path: Path) -> None:
    batch = np.zeros((4, 8, 8, 3), np.float32)
    with pytest.raises(UnsupportedError, match=r"\[4, 8, 8, 3\] is a batch of 4 images.*export .* a batch of 1"):
        run(tmp_path, [one("MaxPool", (4, 8, 8, 3))], image=batch)


def test_thousands_of_operators_that_share_a_tensor_share_its_constant() -> None:
    """A convolution and a convolution of each channel share their weights, which they transpose in different ways."""
    count, weights = 20_000, np.asarray(RNG.standard_normal((1, 1, 1, 1)), np.float32)
    kinds = ("Conv", "DepthwiseConv")
    operators = [
        TfliteOperator(kind=kinds[number % 2], inputs=(number, -3, -4), result=number + 1, result_shape=(1, 2, 2, 1))
        for number in range(count)
    ]
    constants = {-3: weights, -4: np.zeros(1, np.float32)}
    model = TfliteModel(
        source=SOURCE, input_shape=(1, 2, 2, 1), operators=tuple(operators), constants=constants, results=(count,)
    )
    graph = GraphBuilder("made")
    TfliteGraph(graph, model)
    assert graph._data.size == 3 * 64  # weights of both kinds and the bias, aligned


@pytest.mark.parametrize("kind", ["PRelu", "Pad"])
def test_shared_slopes_and_paddings_are_one_constant(kind: str) -> None:
    constant = np.zeros((1, 1, 4), np.float32) if kind == "PRelu" else np.zeros((4, 2), np.int32)
    operators = [
        TfliteOperator(kind=kind, inputs=(number, CONSTANT), result=number + 1, result_shape=IMAGE.shape)
        for number in range(3)
    ]
    model = TfliteModel(
        source=SOURCE, input_shape=IMAGE.shape, operators=tuple(operators), constants={CONSTANT: constant}, results=(3,)
    )
    graph = GraphBuilder("made")
    TfliteGraph(graph, model)
    assert graph._data.size == 64


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
    with pytest.raises(UnsupportedError, match=message):
        run(tmp_path, operators, np.zeros(4, np.float32))


@pytest.mark.parametrize(
    ("operator", "constants", "message"),
    [
        (one("MaxPool", (1, 4, 4, 4), strides=(2, 2), window=(2, 2)), [], r"makes \[1, 3, 4, 4\], not \[1, 4, 4, 4\]"),
        (one("PRelu", (1, 6, 8, 5), CONSTANT), [np.zeros((1, 1, 4), np.float32)], r"makes \[1, 6, 8, 4\]"),
        (one("Reshape", (1, 47, 4)), [], "Reshape 1 of"),
        (one("Conv", (1, 6, 8, 4), CONSTANT, CONSTANT + 1), [WEIGHTS[:, :, :, :3], BIAS], "groups are not supported"),
        (one("DepthwiseConv", (1, 6, 8, 8), CONSTANT, CONSTANT + 1), [np.zeros((1, 1, 1, 8), np.float32), BIAS],
         "one filter for each is supported"),
        (one("Conv", (1, 6, 8, 4), CONSTANT, CONSTANT + 1), [WEIGHTS, np.zeros(3, np.float32)], "a bias"),
        (one("Conv", (1, 6, 8, 4), CONSTANT, CONSTANT + 1), [WEIGHTS.astype(np.int32), BIAS], "int32, not float32"),
        (one("Conv", (1, 6, 8, 4), CONSTANT, -1), [WEIGHTS], "input 2 is absent"),
        (one("Pad", (1, 6, 8, 4), CONSTANT), [np.full((4, 2), -1, np.int32)], "two numbers for each axis"),
        (one("ResizeBilinear", (1, 9, 16, 4), CONSTANT), [np.asarray([12, 16], np.int32)], r"makes \[1, 12, 16, 4\]"),
    ],
)  # fmt: skip
def test_inputs_and_results_that_do_not_fit_are_refused(
    tmp_path: Path, operator: TfliteOperator, constants: list[Any], message: str
) -> None:
    with pytest.raises((ModelError, UnsupportedError), match=message):
        run(tmp_path, [operator], *constants)


# --- files ------------------------------------------------------------------------------------------------------------

IMAGE_SHAPE = (1, 6, 8, 4)
CONV_OPTIONS = {0: ("b", 0), 1: ("i", 2), 2: ("i", 2), 3: ("b", 3)}  # SAME, strides of 2, Relu6


def network(**changed: Any) -> bytes:
    """Return a file: a convolution with float16 weights, a pool over the image, a reshape and Softmax."""
    given: dict[str, Any] = {"options": CONV_OPTIONS, "beta": 1.0, "code": 3, "kind": 0, "custom": ""} | changed
    tensors = [
        Tensor("photo", shape=IMAGE_SHAPE, kind=given["kind"]), Tensor("half", WEIGHTS.astype(np.float16)),
        Tensor("weights", shape=WEIGHTS.shape), Tensor("bias", BIAS), Tensor("features", shape=(1, 3, 4, 4)),
        Tensor("mean", shape=(1, 1, 1, 4)), Tensor("flat", shape=(1, 4)), Tensor("scores", shape=(1, 4)),
    ]  # fmt: skip
    operators = [
        Operator(6, [1], [2]), Operator(given["code"], [0, 2, 3], [4], given["options"], given["custom"]),
        Operator(1, [4], [5], {0: ("b", 1), 1: ("i", 1), 2: ("i", 1), 3: ("i", 4), 4: ("i", 3), 5: ("b", 0)}),
        Operator(22, [5], [6]), Operator(25, [6], [7], {0: ("f", given["beta"])}),
    ]  # fmt: skip
    return tflite(tensors, operators, outputs=[7, 4])


def test_a_file_is_converted_with_the_names_of_its_tensors(tmp_path: Path) -> None:
    (tmp_path / "m.tflite").write_bytes(network())
    walle.convert(tmp_path / "m.tflite", tmp_path / "m.walle")
    session = walle.Session(tmp_path / "m.walle")
    assert [(each.name, each.shape) for each in session.inputs] == [("photo", (1, 4, 6, 8))]
    found = session.run({"photo": np.ascontiguousarray(IMAGE.transpose(0, 3, 1, 2))})
    expected = np.einsum("bhwc,oc->bhwo", IMAGE[:, ::2, ::2], WEIGHTS.astype(np.float16)[:, 0, 0]) + BIAS
    features = np.clip(expected, 0, 6)
    np.testing.assert_allclose(np.asarray(found["features"]).transpose(0, 2, 3, 1), features, atol=1e-2)
    powers = np.exp(features.mean((1, 2)))
    np.testing.assert_allclose(np.asarray(found["scores"]), powers / powers.sum(), atol=1e-3)


def test_the_command_converts_a_file_and_names_an_unsupported_operator(tmp_path: Path) -> None:
    (tmp_path / "m.tflite").write_bytes(network())
    done = CliRunner().invoke(app, ["model", "convert", str(tmp_path / "m.tflite")], catch_exceptions=False)
    assert (done.exit_code, (tmp_path / "m.walle").is_file()) == (0, True)
    (tmp_path / "m.tflite").write_bytes(network(code=117))
    with pytest.raises(UnsupportedError, match=r"m\.tflite: operator HARD_SWISH of TFLite is not supported"):
        CliRunner().invoke(app, ["model", "convert", str(tmp_path / "m.tflite")], catch_exceptions=False)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"code": 32, "custom": "Mine"}, r"operator CUSTOM \('Mine'\) of TFLite is not supported"),
        ({"code": 200}, "operator 200 of TFLite"),
        ({"options": CONV_OPTIONS | {4: ("i", 2)}}, "dilation is not supported"),
        ({"options": CONV_OPTIONS | {0: ("b", 7)}}, "padding 7 of TFLite"),
        ({"options": CONV_OPTIONS | {3: ("b", 4)}}, "activation 4 of TFLite"),
        ({"options": CONV_OPTIONS | {1: ("i", 0)}}, "a stride or a window of less than 1"),
        ({"beta": 2.0}, "beta 2.0 is not supported"),
        ({"kind": 9}, "tensor 0 is int8; the model must be float32"),
    ],
)
def test_options_that_are_not_supported_are_refused_and_never_ignored(changed: dict[str, Any], message: str) -> None:
    with pytest.raises((ModelError, UnsupportedError), match=message):
        read_tflite(network(**changed))


@pytest.mark.parametrize(
    ("tensors", "operators", "message"),
    [
        ([Tensor("x", shape=(1, 1 << 20, 1 << 20, 1))], [], "has more than"),
        ([Tensor("x", shape=(1, -1, 4, 4))], [], "sizes must be known"),
        ([Tensor("x", shape=(1,) * 9)], [], "sizes must be known"),
        ([Tensor("x", shape=(0,))], [], "sizes must be known"),
        ([Tensor("x", shape=(1 << 20,) * 8)], [], "has more than"),
        ([Tensor("x", shape=(4,)), Tensor("y", shape=(4,))], [], "a result, or one that no operator makes|no result"),
        ([Tensor("x", shape=(4,)), Tensor("y", shape=(4,))], [Operator(22, [0] * 300, [1])], "300 inputs"),
        ([Tensor("x", shape=(4,)), Tensor("y", shape=(4,))], [Operator(22, [0], [0])], "makes the tensors"),
        ([Tensor("x", shape=(4,)), Tensor("y", shape=(4,))], [Operator(22, [9], [1])], "tensor 9 of 2"),
        ([Tensor("x", shape=(4,)), Tensor("half", np.zeros(4, np.float16))],
         [Operator(6, [1], [-1])], "tensor -1 of 2"),
        ([Tensor("x", shape=(4,)), Tensor("half", np.zeros(4, np.float16))],
         [Operator(6, [1], [2])], "tensor 2 of 2"),
        ([Tensor("x", shape=(4,)), Tensor("half", np.zeros(4, np.float16)), Tensor("y", shape=(2, 2))],
         [Operator(6, [1], [2])], r"DEQUANTIZE of \[4\] makes tensor 2 of shape \[2, 2\]"),
        ([Tensor("x", shape=(4,)), Tensor("y", shape=(4,)), Tensor("z", shape=(2,), buffer=7)],
         [Operator(22, [0, 2], [1])], "buffer 7 of 1"),
        ([Tensor("x", shape=(4,)), Tensor("y", shape=(4,)), Tensor("z", np.zeros(4, np.float32), shape=(5,))],
         [Operator(22, [0, 2], [1])], "has 16 bytes: not a constant"),
    ],
)  # fmt: skip
def test_hostile_tables_are_refused(tensors: list[Tensor], operators: list[Operator], message: str) -> None:
    with pytest.raises((ModelError, UnsupportedError), match=message):
        read_tflite(tflite(tensors, operators))


def test_one_buffer_is_not_dequantized_thousands_of_times() -> None:
    many = range(2, 2_002)
    tensors = [Tensor("x", shape=(4,)), Tensor("half", np.zeros(100_000, np.float16))]
    tensors += [Tensor("", shape=(100_000,)) for _ in many]
    with pytest.raises(ModelError, match="constants have more than 4 times the bytes of the file"):
        read_tflite(tflite(tensors, [Operator(6, [1], [number]) for number in many]))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_damaged_file_is_read_or_refused(data: st.DataObject) -> None:
    broken = bytearray(FILE)
    for _ in range(data.draw(st.integers(0, 3))):
        broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, len(broken)))
    try:
        model = read_tflite(bytes(broken[:end]), value_bytes=1 << 20)
        TfliteGraph(GraphBuilder("made"), model, name="input:")
    except (ModelError, UnsupportedError):
        return


FILE = network()


def test_a_file_that_asks_for_too_much_ends_its_process_alone(tmp_path: Path) -> None:
    tensors = [
        Tensor("x", shape=(1, 1, 1, 4)), Tensor("y", shape=(1, 4)),
        Tensor("half", np.zeros(4 << 20, np.float16)), Tensor("whole", shape=(4 << 20,)),
    ]  # fmt: skip
    (tmp_path / "m.tflite").write_bytes(tflite(tensors, [Operator(6, [2], [3]), Operator(22, [0], [1])]))
    limits = ConvertLimits(memory_bytes=1 << 20, memory_factor=0)
    with pytest.raises(ModelError, match=r"m\.tflite: .*more memory than 1 MiB"):
        walle.convert(tmp_path / "m.tflite", tmp_path / "m.walle", limits=limits)
    assert not (tmp_path / "m.walle").exists()
    for data, message in (
        (b"", "is an empty file"),
        (FILE[:40], "damaged"),
        (b"x" * 99, "the mark TFL3 is missing"),
    ):
        (tmp_path / "m.tflite").write_bytes(data)
        with pytest.raises(ModelError, match=message):
            walle.convert(tmp_path / "m.tflite", tmp_path / "m.walle")


def test_a_file_is_mapped_from_its_beginning_wherever_its_descriptor_is(tmp_path: Path) -> None:
    (tmp_path / "m.tflite").write_bytes(FILE)
    with (tmp_path / "m.tflite").open("rb") as source, (tmp_path / "m.walle").open("w+b") as out:
        source.seek(0, 2)
        job.run(
            Job(folder="", limits=ConvertLimits()), source.fileno(), out.fileno(),
            report=lambda *_: None, on_external=lambda _: None,
        )  # fmt: skip
    assert [each.name for each in walle.Session(tmp_path / "m.walle").inputs] == ["photo"]


def test_a_limit_of_nodes_bounds_the_operators(tmp_path: Path) -> None:
    (tmp_path / "m.tflite").write_bytes(FILE)
    with pytest.raises(ModelError, match=r"m\.tflite: has 5 operators, more than 4"):
        walle.convert(tmp_path / "m.tflite", tmp_path / "m.walle", limits=ConvertLimits(nodes=4))


def test_the_ending_of_a_name_is_recognised_in_any_case(tmp_path: Path) -> None:
    (tmp_path / "M.TFLite").write_bytes(FILE)
    walle.convert(tmp_path / "M.TFLite", tmp_path / "m.walle")
    assert [each.name for each in walle.Session(tmp_path / "m.walle").inputs] == ["photo"]


def test_a_program_without_a_python_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.tflite").write_bytes(FILE)
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(ModelError, match=r"sys\.executable is not a Python interpreter; run `walle model convert`"):
        walle.convert(tmp_path / "m.tflite", tmp_path / "m.walle")
