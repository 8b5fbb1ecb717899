"""The check of words: a wrong phrase is found at its line; text that only looks like one passes."""

import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CHECK = Path(__file__).parents[1] / "scripts/plain_words.py"
SCRIPT = runpy.run_path(str(CHECK))


def found(path: str, text: str) -> list[tuple[int, str]]:
    findings: list[Any] = SCRIPT["findings"](path, text)
    return [(one.line, one.phrase) for one in findings]


@pytest.mark.parametrize(
    ("path", "text", "line", "phrase"),
    [
        ("a.md", "One line.\n\nThe shape hangs on an input.\n", 3, "hangs on"),
        ("a.h", "#pragma once\n// The shape hangs\n// on an input.\n", 2, "hangs on"),  # over a line's end
        ("a.py", "X = 1\nraise Error('attribute x is not heeded')\n", 2, "heeded"),
        ("a.py", "def f():\n    # Start the generator anew.\n    pass\n", 2, "anew"),
        ("a.cpp", "void despair();\n", 1, "despair"),
        ("a.md", "It waits For Ever.\n", 1, "For Ever"),
        ("a.md", "It stops for good.\n", 1, "for good"),
        ("a.md", "There is no such task.\n", 1, "There is no such"),
        ("a.cpp", 'throw Error("the model is no regular file");\n', 1, "is no regular"),
        ("a.md", "Work that nobody wants.\n", 1, "nobody wants"),
        ("a.md", "It reports what befell a task.\n", 1, "befell"),
        ("a.md", "It reads so many bytes.\n", 1, "so many"),
        ("a.md", "The lock is let go.\n", 1, "let go"),
        ("a.md", "The VM was given up.\n", 1, "was given up"),
        ("a.md", "The task is triggered no more.\n", 1, "triggered no more"),
        ("a.md", "The value stays as it is.\n", 1, "stays as it is"),
        ("a.md", "The interpreter is wiped.\n", 1, "wiped"),
        ("a.toml", "# the tenant of an interpreter\n", 1, "tenant"),
        ("a.sh", "# it comes to rest\n", 1, "comes to rest"),
        ("a.py", "X = 1\nraise Error(f'{x}: the cloud goes on')\n", 2, "goes on"),
        ("a.py", "help = (\n    'each on a device of'\n    ' its own'\n)\n", 2, "of its own"),
        ("a.py", "def test_a_pull_goes_on():\n    pass\n", 1, "goes on"),
    ],
)
def test_a_wrong_phrase_is_found_at_its_line(path: str, text: str, line: int, phrase: str) -> None:
    assert (line, phrase) in found(path, text)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("a.md", "There is no file, and there is no\nkey; it is no longer than 3, is no more.\n"),
        ("a.md", "It has so many tasks that it stops. For good reason.\n"),
        ("a.md", "The server gives up after 3 attempts; it needed no more than 2.\n"),
        ("a.py", "def read(path):\n    '''Return what was told.'''\n    return 'told'\n"),
        ("a.cpp", '// told apart\nint x = count("told = 1");\n'),
        ("a.py", "def test_what_is_told():\n    pass\n"),
        ("a.py", "def f():\n    'Return what lies there, in place of x.'\n"),
        ("tests/a.py", "X = 'a server takes no writes'\n"),
        ("a.cpp", "// A row.\n// Whether a row is empty.\nbool empty();\n"),
    ],
)
def test_text_that_resembles_a_wrong_phrase_passes(path: str, text: str) -> None:
    assert found(path, text) == []


def test_names_are_read_in_code_alone() -> None:
    assert found("a.py", "\ntold = 1  # told\n") == [(2, "told")]
    assert found("a.cpp", '/* told\n*/ bool told_ = is_told("told");\n') == [(2, "is_told"), (2, "told_")]
    assert found("a.h", "struct OnlyGiver {};\n") == [(1, "OnlyGiver")]
    assert found("a.md", "told = 1\n") == []


def test_the_name_of_a_test_is_read_as_a_sentence() -> None:
    assert found("a.py", "\ndef test_shapes_hang_on_inputs():\n    pass\n") == [(2, "hang on")]
    assert found("a.py", "def shapes_hang_on_inputs():\n    pass\n") == []


@pytest.mark.parametrize("word", ["What", "Who", "Whose", "Where", "Whether", "How"])
def test_docstrings_that_begin_with_a_question_word(word: str) -> None:
    assert found("a.py", f'"""{word} this is."""\n') == [(1, word)]
    assert found("a.py", f'"""Frames."""\n\n\ndef f():\n    """{word} this is."""\n') == [(5, word)]
    assert found("a.py", f'class C:\n    """{word} this is."""\n') == [(2, word)]
    assert found("a.h", f"// {word} this is.\n#pragma once\n") == [(1, word)]
    assert found("a.md", f"{word} this is.\n") == []
    assert found("a.py", f'"""{word}ever."""\n') == []


@pytest.mark.parametrize(
    ("path", "text", "line", "phrase"),
    [
        ("a.py", "X = 1\nCHUNK_BYTES = 64  # which it must have\n", 2, "which it must have"),
        ("a.py", "x = f(  # Of the device's key\n    1,\n)\n", 1, "Of the device's key"),
        ("a.py", "close()  # its handshake has ended\n", 1, "its handshake has ended"),
        ("a.py", "LOOK_S = 5  # between two looks at the file\n", 1, "between two looks at the file"),
        ("a.py", "CLOSE_S = 2.0  # for the last bytes to leave\n", 1, "for the last bytes to leave"),
        ("a.py", "x.sort()  # by age\n", 1, "by age"),
        ("a.py", "gone = 1  # at most\n", 1, "at most"),
        (
            "a.py",
            "size_bytes = 0  # while it is cached, with the decision\n",
            1,
            "while it is cached, with the decision",
        ),
        (
            "a.py",
            "RECENT_S = 60  # since its last use, in which it stays\n",
            1,
            "since its last use, in which it stays",
        ),
        ("a.cpp", "int x;\nint y;  // in scratch\n", 2, "in scratch"),
        ("a.h", 'const char* x = "//";  // not this\n', 1, "not this"),
        ("a.toml", '[a]\nx = "#"  # where another is missing\n', 2, "where another is missing"),
    ],
)
def test_a_comment_at_the_end_of_a_line_that_continues_a_sentence(path: str, text: str, line: int, phrase: str) -> None:
    assert found(path, text) == [(line, phrase)]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("a.py", "CHUNK_BYTES = 64  # smallest chunk; smaller ones cost more than they carry\n"),
        ("a.py", "x = 1  # a device of which nothing is known\n"),
        ("a.py", "# which begins here\nx = '# of text'\n# and goes on\n"),
        ("a.py", "tasks: dict[str, int] = {}  # by device, those that are written\n"),
        ("a.py", "age = 5  # in seconds\nsize = 1  # in whole pixels\nx = f()  # of shape (N, C)\n"),
        ("a.py", "gaps: list[int] = []  # at most MAX_GAPS\n"),
        ("a.py", "x = f()  # for tests\nassert x == 1  # for everyone\n"),
        ("a.py", "x = 1  # where it is full, the oldest is removed\n"),
        ("a.py", "import a  # noqa: F401\nx = 1  # toward zero\ny = 2  # iteration\n"),
        (
            "a.cpp",
            "// of a cell\nint x;  // number of a cell\nstd::vector<int> ends;  // by row\n}  // namespace walle\n",
        ),
        ("a.toml", "# of a task\nx = 1  # one of a task\ny = 'of # a'\n"),
        ("a.md", "x = 1  # of a page\n"),
    ],
)
def test_comments_that_read_alone_pass(path: str, text: str) -> None:
    assert found(path, text) == []


def test_an_exception_is_for_its_path_and_phrase() -> None:
    text = "It hangs on a lock.\n"
    assert found("docs/a.md", text) == [(1, "hangs on")]
    exceptions = SCRIPT["findings"].__globals__["EXCEPTIONS"]
    SCRIPT["findings"].__globals__["EXCEPTIONS"] = (("docs/", "hangs on", "for this test"),)
    try:
        assert found("docs/a.md", text) == []
        assert found("docs/a.md", "It is done anew.\n") == [(1, "anew")]
        assert found("doc/a.md", text) == [(1, "hangs on")]
    finally:
        SCRIPT["findings"].__globals__["EXCEPTIONS"] = exceptions


def test_each_exception_is_needed() -> None:
    root = CHECK.parents[1]
    for path, _, reason in SCRIPT["EXCEPTIONS"]:
        assert (root / path).exists(), path
        assert reason


def run(*paths: str) -> tuple[int, str]:
    result = subprocess.run(
        [sys.executable, str(CHECK), *paths], cwd=CHECK.parents[1], capture_output=True, text=True, check=False
    )
    return result.returncode, result.stderr


def test_the_paths_given_are_read() -> None:
    assert run("scripts/plain_words.py") == (0, "")
    assert run("scripts", "tests/test_plain_words.py") == (0, "")


def test_a_path_without_tracked_files_is_refused(tmp_path: Path) -> None:
    code, text = run("scripts/no_such_folder")
    assert (code, "no_such_folder" in text) == (2, True)
    assert run(str(tmp_path))[0] == 2
