"""The item embedder as a .walle model, from the published MobileNet v1 (models.toml, recognition_mobilenet):
`python -m apps.livestream.make_embedder MOBILENET.tflite EMBEDDER.walle`.

The published file only gives class probabilities. The embedding is what the classifier sees: the mean of the last
features over the image. The layout is turned from TFLite's, which ends with the channels, to the engine's:

    image [1, 3, 128, 128], RGB, x / 127.5 - 1  ->  embedding [1, 256], probabilities [1, 1001]
"""

import argparse
from pathlib import Path

import numpy as np

from apps.livestream.tflite import TfliteError, TfliteModel, TfliteOperator, read_tflite
from walle.engine_ext.model import GraphBuilder, Value

EMBEDDING = 256


def build_embedder(graph: GraphBuilder, model: TfliteModel) -> None:
    """Add a classifier of TFLite to an empty graph, with the input of its last layer as a second output.

    Raises:
        TfliteError: it is not convolutions, then a pool over the whole image, a classifier and Softmax.
    """
    _, height, width, channels = model.input_shape
    value = graph.input("image", (1, channels, height, width))
    sides = (height, width)
    pooled = ""
    for place, operator in enumerate(model.operators):
        match operator.kind:
            case "Conv" | "DepthwiseConv":
                value = _convolution(graph, operator, value, sides, str(place))
            case "AveragePool" if operator.result_shape[1:3] == (1, 1) and not operator.activation:
                value = graph.op("GlobalAveragePool", [value])
                shape = graph.constant("embedding_shape", [1, operator.result_shape[3]], "int64")
                graph.output("embedding", graph.op("Reshape", [value, shape]))
                pooled = "embedding"
            case "Reshape":
                shape = graph.constant(f"shape_{place}", list(operator.result_shape), "int64")
                value = graph.op("Reshape", [value, shape])
            case "Softmax":
                graph.output("probabilities", graph.op("Softmax", [value], axis=-1))
            case _:
                raise TfliteError(f"{operator.kind} {place} is not a pool over the whole image")
        if operator.kind != "Reshape" and len(operator.result_shape) == 4:
            sides = (operator.result_shape[1], operator.result_shape[2])
    if not pooled or model.operators[-1].kind != "Softmax":
        raise TfliteError("does not end with a pool over the whole image, a classifier and Softmax")


def _convolution(graph: GraphBuilder, one: TfliteOperator, value: Value, sides: tuple[int, int], name: str) -> Value:
    weights, bias = one.constants
    if one.kind == "DepthwiseConv":
        turned, group = weights.transpose(3, 0, 1, 2), weights.shape[3]  # [1, h, w, channels]
    else:
        turned, group = weights.transpose(0, 3, 1, 2), 1  # [results, h, w, channels]
    kernel = list(weights.shape[1:3])
    before, after = zip(
        *(
            _pads(one.padding, side, size, stride)
            for side, size, stride in zip(sides, kernel, one.strides, strict=True)
        ),
        strict=True,
    )
    inputs = [value, graph.constant(f"w{name}", np.ascontiguousarray(turned)), graph.constant(f"b{name}", bias)]
    result: Value = graph.op(
        "Conv", inputs, kernel_shape=kernel, strides=list(one.strides), pads=[*before, *after], group=group
    )
    if one.activation == "Relu6":
        bounds = [graph.constant(f"low{name}", np.float32(0)), graph.constant(f"high{name}", np.float32(6))]
        result = graph.op("Clip", [result, *bounds])
    elif one.activation:
        result = graph.op("Relu", [result])
    return result


def _pads(padding: str, side: int, kernel: int, stride: int) -> tuple[int, int]:
    """Return TFLite's padding before and after: with SAME an odd one goes to the end."""
    if padding == "VALID":
        return 0, 0
    total = max(0, (-(-side // stride) - 1) * stride + kernel - side)
    return total // 2, total - total // 2


def write_embedder(source: Path, target: Path) -> Path:
    """Write the embedder of the TFLite file `source` to `target`; return `target`.

    Raises:
        TfliteError: the file is not such a model.
        OSError: it cannot be read.
    """
    graph = GraphBuilder("item_embedder")
    try:
        build_embedder(graph, read_tflite(source.read_bytes()))
    except TfliteError as error:
        raise TfliteError(f"{source}: {error}") from error
    graph.save(target)
    return target


def main() -> None:
    """Write the embedder."""
    parser = argparse.ArgumentParser(description="Write the item embedder as a .walle model.")
    parser.add_argument("source", type=Path, help="the published MobileNet v1, a .tflite file")
    parser.add_argument("target", type=Path)
    arguments = parser.parse_args()
    write_embedder(arguments.source, arguments.target)


if __name__ == "__main__":
    main()
