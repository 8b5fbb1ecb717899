"""docs/api.md: it lists the names of walle.np, and a reason for each of NumPy's that is missing."""

import importlib.util
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def script() -> Any:
    spec = importlib.util.spec_from_file_location("np_api", ROOT / "scripts/np_api.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_document_has_the_names() -> None:
    text = (ROOT / "docs/api.md").read_text()
    assert script().problems(text) == []


def test_a_missing_name_is_noticed() -> None:
    text = (ROOT / "docs/api.md").read_text()
    assert any("matmul" in problem for problem in script().problems(text.replace("`matmul`", "`mat_mul`")))
    assert script().problems("") != []


def test_every_name_is_compared_or_has_tests_of_its_own() -> None:
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_np*.py"))
    module = script()
    for name in module.present():
        last = name.split(".")[-1]
        assert name in module.CASES or last in module.CASES or last in tests, name
