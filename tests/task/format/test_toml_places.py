"""Places of keys in a TOML text: right after texts of several lines, and in time that is linear in the text."""

import time
import tomllib

import pytest

from walle.task.format.toml_places import key_places


@pytest.mark.parametrize(
    "value",
    [
        r'"""\""""',
        '"""\n[not.a.section]\n"""',
        '"""a\\"""\nb = 1\n"""',
        "'''\nb = '1'\n'''",
        '"""""two quotes before the end"""""',
        r'"a\"b" # a "comment"',
        '["]", \'"\', "[" ]',
        '"""it\'s"""',
    ],
)
def test_a_key_after_any_text_has_its_place(value: str) -> None:
    text = f"[a]\nx = {value}\nlast = 1\n"
    assert tomllib.loads(text)["a"]["last"] == 1
    assert key_places(text)[("a", "last")] == (text.count("\n"), 1)
    assert list(key_places(text)) == [("a",), ("a", "x"), ("a", "last")]


@pytest.mark.parametrize("part", ['\\"', '"', "\\", "'", '\\""'])
def test_a_line_of_quotes_takes_linear_time(part: str) -> None:
    """64 KB of escaped quotes took 12 s of CPU time where a version was refused."""

    def cpu_s(times: int) -> float:
        text = 'a = """\\"""' + part * times
        began = time.process_time()
        key_places(text)
        return time.process_time() - began

    cpu_s(1)
    assert cpu_s(32_000) < 0.5
