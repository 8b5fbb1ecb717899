"""The reference page of walle.np: it lists the names, and a reason for each of NumPy's that is missing."""

from pathlib import Path

import pytest

from scripts import np_page
from tests.engine_ext.np_cases import CASES


def test_every_missing_name_of_numpy_has_a_reason() -> None:
    assert np_page.problems() == []


def test_a_missing_name_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(np_page, "MISSING", {})
    assert any("busday_count" in problem for problem in np_page.problems())


def test_the_page_has_the_names_and_the_differences() -> None:
    page = np_page.page()
    assert [name for name in np_page.present() if f"`{name}`" not in page] == []
    assert [what for what, why in np_page.MEANT.items() if f"| {what} | {why} |" not in page] == []


def test_every_name_is_compared_or_has_separate_tests() -> None:
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_np*.py"))
    for name in np_page.present():
        last = name.split(".")[-1]
        assert name in CASES or last in CASES or last in tests, name
