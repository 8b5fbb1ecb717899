"""Drawn layers: the same for a seed, within the ranges of the paper's Table 3 and the limits of profiling."""

import itertools

from walle.engine_ext.search.layers import MOST_FLOPS, MOST_WEIGHT_BYTES, Layer, LayerDraw

DRAWN = list(itertools.islice(LayerDraw(1), 2000))


def test_a_seed_gives_the_same_layers() -> None:
    assert list(itertools.islice(LayerDraw(1), 100)) == DRAWN[:100]
    assert list(itertools.islice(LayerDraw(2), 100)) != DRAWN[:100]
    assert len(set(DRAWN)) == len(DRAWN)


def test_layers_cover_the_ranges_and_exceed_no_limit() -> None:
    assert {layer.f for layer in DRAWN} == {1, 3, 5, 7, 9, 11}
    assert {layer.s for layer in DRAWN} == {1, 2, 4}
    for number in ("k", "c"):
        found = sorted(getattr(layer, number) for layer in DRAWN)
        assert found[0] == 1
        assert 1500 < found[-1] <= 2048
    sizes = sorted(layer.im for layer in DRAWN)
    assert sizes[0] == 7
    assert 250 < sizes[-1] <= 299
    assert all(layer.f <= layer.im and layer.fits() for layer in DRAWN)
    assert max(layer.flops for layer in DRAWN) > MOST_FLOPS / 4


def test_layers_beyond_a_limit_are_counted() -> None:
    draw = LayerDraw(1)
    list(itertools.islice(draw, 200))
    assert draw.too_large > 0
    assert not Layer(2048, 1025, 7, 1, 3).fits()
    assert Layer(512, 512, 14, 1, 3).weight_bytes <= MOST_WEIGHT_BYTES
    assert not Layer(64, 256, 299, 1, 1).fits()
    assert not Layer(1, 512, 56, 1, 11).fits()


def test_sizes_are_those_of_same_padding() -> None:
    assert [Layer(1, 1, 224, s, 3).out for s in (1, 2, 4)] == [224, 112, 56]
    assert Layer(1, 1, 7, 2, 3).out == 4
    assert Layer(16, 8, 10, 1, 3).flops == 2 * 16 * 8 * 9 * 100
