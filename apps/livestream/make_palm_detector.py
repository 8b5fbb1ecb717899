"""The palm detector as a .walle model, from MediaPipe's (models.toml, palm_mediapipe):
`python -m apps.livestream.make_palm_detector PALM.tflite DETECTOR.walle`.

    image [1, 3, 192, 192], RGB, x / 255  ->  boxes [1, 2016, 18], scores [1, 2016, 1] (logits)

The rows are the anchors of MediaPipe: 2 in each cell of 8 x 8 pixels, then 6 in each of 16 x 16. A box is its centre's
distance from the cell's, width and height, in pixels, then seven points.
"""

import argparse
from pathlib import Path

from walle.engine_ext.errors import ModelError, UnsupportedError
from walle.engine_ext.model import GraphBuilder
from walle.engine_ext.tflite_import.graph import TfliteGraph
from walle.engine_ext.tflite_import.read import TfliteModel, read_tflite

ANCHORS = 2016
OUTPUTS = {18: "boxes", 1: "scores"}  # names by the count of numbers in a row


def write_palm_detector(source: Path, target: Path) -> Path:
    """Write the detector of the TFLite file `source` to `target`; return `target`.

    Raises:
        ModelError, UnsupportedError: the file is not that model.
        OSError: it cannot be read.
    """
    graph = GraphBuilder("palm_detector")
    try:
        model = read_tflite(source.read_bytes())
        made = TfliteGraph(graph, model)
        found = _results(model)
        for name in OUTPUTS.values():
            graph.output(name, made.values[found[name]])
    except (ModelError, UnsupportedError) as error:
        raise type(error)(f"{source}: {error}") from error
    graph.save(target)
    return target


def _results(model: TfliteModel) -> dict[str, int]:
    """Return the numbers of the tensors that are the outputs, by name."""
    shapes = {operator.result: operator.result_shape for operator in model.operators}
    found = {
        OUTPUTS[shapes[one][2]]: one
        for one in model.results
        if shapes[one][:2] == (1, ANCHORS) and shapes[one][2:] in {(count,) for count in OUTPUTS}
    }
    if found.keys() != set(OUTPUTS.values()):
        raise ModelError(f"its results are not boxes [1, {ANCHORS}, 18] and scores [1, {ANCHORS}, 1]")
    return found


def main() -> None:
    """Write the palm detector."""
    parser = argparse.ArgumentParser(description="Write the palm detector as a .walle model.")
    parser.add_argument("source", type=Path, help="MediaPipe's palm_detection_full.tflite")
    parser.add_argument("target", type=Path)
    arguments = parser.parse_args()
    write_palm_detector(arguments.source, arguments.target)


if __name__ == "__main__":
    main()
