"""Each line of docs/security.md about what an attacker can or cannot do names tests, and they exist."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "security.md"
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
_MIN_LINES = 30


def lines_with_tests(text: str) -> list[tuple[int, str]]:
    """Return number and text of each row of the tables whose last column is `tested by`."""
    found = []
    in_table = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.endswith("| tested by |"):
            in_table = True
        elif not line.startswith("|"):
            in_table = False
        elif in_table and not line.startswith("| ---"):
            found.append((number, line))
    return found


@cache
def functions_in(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def faults(text: str) -> list[str]:
    found = []
    for number, line in lines_with_tests(text):
        named = _TEST.findall(line.rpartition("| ")[2] if line.count("|") == 3 else line)
        if not named:
            found.append(f"line {number} names no test")
    for path, test in _TEST.findall(text):
        if not (ROOT / path).is_file():
            found.append(f"{path} does not exist")
        elif test not in functions_in(ROOT / path):
            found.append(f"{path} has no {test}")
    return found


def test_each_line_names_tests_that_exist() -> None:
    text = PAGE.read_text()
    assert len(lines_with_tests(text)) >= _MIN_LINES
    assert not faults(text)


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ("| read keys | |", "line 3 names no test"),
        ("| read keys | `tests/security/test_isolation.py` |", "line 3 names no test"),
        ("| x | `tests/nowhere.py::test_x` |", "tests/nowhere.py does not exist"),
        ("| x | `tests/test_security_page.py::test_x` |", "tests/test_security_page.py has no test_x"),
    ],
)
def test_a_line_without_its_test_is_found(row: str, fault: str) -> None:
    assert faults(f"| they cannot | tested by |\n| --- | --- |\n{row}\n") == [fault]
