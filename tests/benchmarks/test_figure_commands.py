"""Commands of the short figures as a user runs them, in a copy of the checkout; `make test-figures` runs all."""

from pathlib import Path

import pytest

from tests.benchmarks.figure_checkout import DATA, FigureCheckout, catalogue

SHORT_S = 3.0
_SMOKE = "small_arrays"
_SHORT = [
    pytest.param(name, marks=() if name == _SMOKE else pytest.mark.night)
    for name, figure in catalogue().figures.items()
    if figure.quick_s <= SHORT_S
]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> FigureCheckout:
    return FigureCheckout(tmp_path_factory.mktemp("figures"))


@pytest.mark.parametrize("name", _SHORT)
def test_a_short_figure_measures_with_nothing_fetched(checkout: FigureCheckout, name: str) -> None:
    checkout.run(catalogue().figures[name])


@pytest.mark.night
@pytest.mark.skipif(not (DATA / "models").is_dir(), reason="the real models are not beside this checkout")
def test_the_livestream_models_are_measured_with_the_public_ones(checkout: FigureCheckout) -> None:
    models: Path = DATA / "models"
    (headline,) = checkout.run(catalogue().figures["livestream_models"], "--rounds", "1", models=models)
    assert "random weights" in headline.what
    assert headline.measured().keys() == {"onnxruntime"}
