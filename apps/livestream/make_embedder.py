"""The item embedder as a .walle model, from the published MobileNet v1 (models.toml, recognition_mobilenet):
`python -m apps.livestream.make_embedder MOBILENET.tflite EMBEDDER.walle`.

The published file only gives class probabilities. The embedding is what the classifier sees: the mean of the last
features over the image. The layout is turned from TFLite's, which ends with the channels, to the engine's:

    image [1, 3, 128, 128], RGB, x / 127.5 - 1  ->  embedding [1, 256], probabilities [1, 1001]
"""

import argparse
from pathlib import Path

from walle.engine_ext.errors import ModelError, UnsupportedError
from walle.engine_ext.model import GraphBuilder
from walle.engine_ext.tflite_import.graph import TfliteGraph
from walle.engine_ext.tflite_import.read import TfliteModel, read_tflite

EMBEDDING = 256


def build_embedder(graph: GraphBuilder, model: TfliteModel) -> None:
    """Add a classifier of TFLite to an empty graph, with the input of its last layer as a second output.

    Raises:
        ModelError, UnsupportedError: it is not convolutions, then a pool over all, a classifier and Softmax.
    """
    made = TfliteGraph(graph, model)
    pools = [one for one in model.operators if one.kind == "AveragePool"]
    if len(pools) != 1 or model.operators[-1].kind != "Softmax":
        raise ModelError("does not end with a pool over the whole image, a classifier and Softmax")
    shape = graph.constant("embedding_shape", [1, pools[0].result_shape[3]], "int64")
    graph.output("embedding", graph.op("Reshape", [made.values[pools[0].result], shape]))
    graph.output("probabilities", made.values[model.operators[-1].result])


def write_embedder(source: Path, target: Path) -> Path:
    """Write the embedder of the TFLite file `source` to `target`; return `target`.

    Raises:
        ModelError, UnsupportedError: the file is not such a model.
        OSError: it cannot be read.
    """
    graph = GraphBuilder("item_embedder")
    try:
        build_embedder(graph, read_tflite(source.read_bytes()))
    except (ModelError, UnsupportedError) as error:
        raise type(error)(f"{source}: {error}") from error
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
