"""The picture of a demo run: the lines that a terminal shows at the end, and nothing fetched from elsewhere."""

import re
import runpy
import sys
from pathlib import Path

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "scripts/demo_picture.py"))


def test_an_erased_live_display_is_not_on_the_screen() -> None:
    frame = "\r\x1b[2K\x1b[1A\x1b[2K"
    written = f"one\r\n\x1b[?25llive 1\r\n..{frame}two\r\nlive 2\r\n..{frame}\x1b[?25h\x1b[2m3.0 s\x1b[0m done\r\n\r\n"
    assert SCRIPT["screen"](written) == ["one", "two", "\x1b[2m3.0 s\x1b[0m done"]


def test_a_program_runs_in_a_terminal_of_the_pictures_width(tmp_path: Path) -> None:
    program = "import os, sys; print(sys.stdout.isatty(), *os.get_terminal_size(), os.environ['HOME']); sys.exit(3)"
    status, written = SCRIPT["record"]([sys.executable, "-c", program], tmp_path)
    width, height = SCRIPT["COLUMNS"], SCRIPT["ROWS"]
    assert (status, written) == (3, f"True {width} {height} {tmp_path / 'home'}\r\n")


def test_a_picture_has_its_lines_and_fetches_nothing(tmp_path: Path) -> None:
    SCRIPT["draw"](["\x1b[32myes\x1b[0m  a < b"], tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    assert "yes" in text
    assert "&lt;" in text
    assert re.findall(r"https?://[^\"]*", text) == ["http://www.w3.org/2000/svg"]
