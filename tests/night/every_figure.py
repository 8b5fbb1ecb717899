"""Commands of all figures as a user runs them, with nothing fetched, and again with the real clips, models and logs.

`make test-figures` runs them: they are too long for `make test`, which does not collect this file.
"""

import pytest

from tests.benchmarks.figure_checkout import DATA, FigureCheckout, catalogue

pytestmark = pytest.mark.timeout(400)
_FETCHED = {  # arguments with which a figure finds what is beside this checkout
    "ipv": ["--logs", str(DATA / "events")],
    "livestream": ["--clips", str(DATA / "video")],
    "livestream_decoding": ["--files", str(DATA / "video" / "asl_book.mkv")],
    "livestream_models": [],
    "phone_day": ["--logs", str(DATA / "events")],
}
_NOT_MEASURED = {  # peers that a machine may lack; any other has a number
    "nginx in front", "PostgreSQL", "C++ server that only answers", "Ray Serve", "mnn", "openvino", "ncnn", "torch",
}  # fmt: skip


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> FigureCheckout:
    return FigureCheckout(tmp_path_factory.mktemp("figures"))


@pytest.mark.parametrize("name", catalogue().figures)
def test_a_figure_measures_with_nothing_fetched(checkout: FigureCheckout, name: str) -> None:
    for headline in checkout.run(catalogue().figures[name]):
        assert headline.peers.keys() - headline.measured().keys() <= _NOT_MEASURED, headline.to_line()


@pytest.mark.skipif(not DATA.is_dir(), reason="the real clips, models and logs are not beside this checkout")
@pytest.mark.parametrize("name", _FETCHED)
def test_a_figure_measures_with_what_is_fetched(checkout: FigureCheckout, name: str) -> None:
    found = checkout.run(catalogue().figures[name], *_FETCHED[name], models=DATA / "models")
    if name == "livestream":
        assert all("labelled clip, public models" in headline.what for headline in found)
