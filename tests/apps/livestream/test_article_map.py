"""The article map: a small network against NumPy without a model's file, and the published one where it is there."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import walle
from apps.livestream.make_article_map import article_classes, build_article_map, write_article_map
from tests.apps.livestream import reference
from tests.sim.checkpoints import BLOCKS, checkpoint, lite0
from walle.engine_ext.errors import ModelError
from walle.engine_ext.model import GraphBuilder
from walle.engine_ext.torch_weights import read_weights
from walle.model_files import ModelFolder

# Classes of ImageNet, from 0.
EGYPTIAN_CAT, ESPRESSO, MILITARY_UNIFORM, HOT_DOG = 285, 967, 652, 934

type Weights = dict[str, NDArray[Any]]


def reference_map(weights: Weights, image: NDArray[np.float32]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the article map and the probabilities of an image [3, side, side], with NumPy alone."""

    def conv(x: NDArray[Any], name: str, norm: str, stride: int = 1, *, relu: bool = True) -> NDArray[Any]:
        w = weights[f"{name}.weight"].astype(np.float64)
        kernel, side = w.shape[2], x.shape[1]
        total = max(0, (-(-side // stride) - 1) * stride + kernel - side)
        ends = (total // 2, total - total // 2)
        windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), ends, ends)), (kernel, kernel), (1, 2))
        windows = windows[:, ::stride, ::stride]
        kind = "chwij,cij->chw" if w.shape[1] == 1 and len(x) > 1 else "chwij,dcij->dhw"
        y = np.einsum(kind, windows, w[:, 0] if kind.startswith("chwij,cij") else w)
        mean, variance, scale, shift = (
            weights[f"{norm}.{part}"].astype(np.float64)[:, None, None]
            for part in ("running_mean", "running_var", "weight", "bias")
        )
        y = (y - mean) / np.sqrt(variance + 1e-3) * scale + shift
        result: NDArray[Any] = np.clip(y, 0, 6) if relu else y
        return result

    x = conv(image.astype(np.float64), "_conv_stem", "_bn0", 2)
    for number, (_, stride, widening) in enumerate(BLOCKS):
        name, y = f"_blocks.{number}", x
        if widening > 1:
            y = conv(y, f"{name}._expand_conv", f"{name}._bn0")
        y = conv(y, f"{name}._depthwise_conv", f"{name}._bn1", stride)
        y = conv(y, f"{name}._project_conv", f"{name}._bn2", relu=False)
        # The first block of a stage has no residual, also where the size stays.
        x = y if number in (0, 1, 3, 5, 8, 11, 15) else x + y
    x = conv(x, "_conv_head", "_bn1")

    def shares(features: NDArray[Any]) -> NDArray[Any]:
        logits = features @ weights["_fc.weight"].T.astype(np.float64) + weights["_fc.bias"]
        powers = np.exp(logits - logits.max(-1, keepdims=True))
        result: NDArray[Any] = powers / powers.sum(-1, keepdims=True)
        return result

    return shares(x.transpose(1, 2, 0))[..., article_classes()].sum(-1), shares(x.mean((1, 2)))


def session(weights: Weights, folder: Path, side: int) -> walle.Session:
    graph = GraphBuilder("map")
    build_article_map(graph, weights, side=side, classes=True)
    graph.save(folder / "map.walle")
    return walle.Session(folder / "map.walle")


@pytest.mark.parametrize("side", [64, 96])
def test_it_is_the_classifier_on_each_cell(tmp_path: Path, side: int) -> None:
    weights = read_weights(checkpoint(lite0()))
    image = np.random.default_rng(1).standard_normal((3, side, side)).astype(np.float32)
    found = session(weights, tmp_path, side).run({"image": image[None]})
    cells, probabilities = reference_map(weights, image)
    np.testing.assert_allclose(np.asarray(found["articles"])[0, 0], cells, atol=1e-5)
    np.testing.assert_allclose(np.asarray(found["probabilities"])[0], probabilities, atol=1e-5)
    assert np.ptp(cells) > 0.01


def test_the_articles_are_238_classes() -> None:
    classes = article_classes()
    assert len(classes) == len(set(classes)) == 238
    assert classes == sorted(classes)
    assert {ESPRESSO, HOT_DOG} <= set(classes)
    assert not {EGYPTIAN_CAT, MILITARY_UNIFORM} & set(classes)
    assert classes[0] > 398  # those below are animals
    assert classes[-1] < 1000


def test_other_weights_are_refused(tmp_path: Path) -> None:
    weights = lite0()
    path = tmp_path / "other.pth"
    for changed, message in (
        ({key: value for key, value in weights.items() if key != "_blocks.3._bn1.bias"}, "has no tensor"),
        ({**weights, "_blocks.16._bn1.weight": weights["_bn1.weight"]}, "has more than 16 blocks"),
        ({**weights, "_fc.weight": weights["_fc.weight"][:10]}, "has 10 classes"),
        ({**weights, "_conv_head.weight": weights["_conv_head.weight"][:3]}, "do not fit"),
        ({**weights, "_blocks.1._depthwise_conv.weight": np.zeros((24, 1, 5, 5), np.float32)}, "another kernel than 3"),
    ):
        path.write_bytes(checkpoint(changed))
        with pytest.raises(ModelError, match=message) as caught:
            write_article_map(path, tmp_path / "map.walle")
        assert str(caught.value).startswith(str(path))
    with pytest.raises(ValueError, match="multiple of 32"):
        build_article_map(GraphBuilder("map"), weights, side=100)


def test_the_published_network_names_known_pictures(article_models: ModelFolder, images: Path, tmp_path: Path) -> None:
    """Its classes in pictures that everybody knows; where nobody holds anything, the map says so."""
    weights = read_weights((article_models.path / "efficientnet-lite0-57934424.pth").read_bytes())
    small, large = session(weights, tmp_path, 224), session(weights, tmp_path, 448)
    for name, expected, is_article in (
        ("chelsea.png", EGYPTIAN_CAT, False),
        ("coffee.png", ESPRESSO, True),
        ("grace_hopper.bmp", MILITARY_UNIFORM, False),
        ("hot_dog.jpg", HOT_DOG, True),
    ):
        picture = reference.picture(images / name)
        found = small.run({"image": reference.squeezed(picture, 224)})
        best = np.argsort(-np.asarray(found["probabilities"])[0])[:3]
        assert expected in best, (name, best)
        middle = np.asarray(large.run({"image": reference.squeezed(picture, 448)})["articles"])[0, 0, 4:10, 4:10]
        assert (middle.mean() > 0.5) == is_article, (name, middle.mean())
