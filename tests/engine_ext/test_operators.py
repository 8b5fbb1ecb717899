"""The registry as documentation."""

import re

from walle.engine_ext.operators import CATEGORIES, PAPER, markdown, operators, refused_gradients, workload


def test_the_papers_own_numbers_come_out_of_the_formula() -> None:
    assert (PAPER.by_hand, PAPER.by_geometry, round(PAPER.saved, 2)) == (1954, 1055, 0.46)


def test_there_are_as_many_operators_of_each_category_as_in_the_paper() -> None:
    here = workload()
    assert here.atomic >= PAPER.atomic
    assert here.transform >= PAPER.transform
    assert here.composite >= PAPER.composite
    assert here.control_flow >= PAPER.control_flow
    assert here.by_geometry < here.by_hand


def test_every_composite_is_made_of_operators_that_there_are() -> None:
    names = {one.name for one in operators()}
    for one in operators():
        assert set(one.decomposes_to) <= names, one.name
        assert one.category in CATEGORIES


def test_the_page_has_each_operator() -> None:
    words = set(re.findall(r"\w+", markdown()))
    assert [one.name for one in operators() if one.name not in words] == []


GRADIENTS = {
    "atomic": {"rule", "flat", "refused"},
    "transform": {"raster"},
    "composite": {"parts", "rule"},
    "control-flow": {""},
    "sequence": {""},
}


def test_every_operator_has_a_gradient_or_a_reason_for_none() -> None:
    refused = refused_gradients()
    for one in operators():
        assert one.gradient in GRADIENTS[one.category], one.name
        assert (one.gradient == "refused") == (one.name in refused), one.name
        if one.gradient == "parts":
            assert one.decomposes_to or one.name in {"Gradient", "Shape", "Size"}, one.name
    assert all(refused.values())


def test_the_page_has_the_reason_of_each_refusal() -> None:
    page = markdown()
    for name, reason in refused_gradients().items():
        assert f"| {name} | {reason} |" in page
