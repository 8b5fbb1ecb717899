"""Picture of a demo run for the README: what `walle demo` leaves in a terminal.

usage: demo_picture.py [FILE]

Runs the demo (half a minute on two idle cores) with an empty home and writes FILE, docs/demo.svg by default.
"""

import argparse
import io
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
from fcntl import ioctl
from pathlib import Path
from termios import TIOCSWINSZ

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
COLUMNS, ROWS = 118, 60

_PIECE = re.compile(r"\x1b\[\??[\d;]*[A-Za-z]|\r|\n|[^\x1b\r\n]+")
_REMOTE = re.compile(r"@font-face \{.*?\}\n|<!--.*?-->", re.DOTALL)  # fonts that a reader's browser would fetch


def record(command: list[str], folder: Path) -> tuple[int, str]:
    """Run a command in a terminal, with a home and a working folder below `folder`.

    Return its exit status and the text that it wrote, with escape sequences.
    """
    home = folder / "home"
    home.mkdir()
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL") if name in os.environ}
    environment = {**kept, "HOME": str(home), "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(ROWS)}
    leader, follower = pty.openpty()
    ioctl(follower, TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    process = subprocess.Popen(
        command, stdin=follower, stdout=follower, stderr=follower, env=environment, cwd=ROOT, start_new_session=True
    )
    os.close(follower)
    written = b""
    while True:
        try:
            part = os.read(leader, 65_536)
        except OSError:  # Linux: every writer has closed the terminal
            break
        if not part:
            break
        written += part
    os.close(leader)
    return process.wait(), written.decode(errors="replace")


def screen(written: str) -> list[str]:
    """Return the lines that a terminal shows at the end, with their colors as escape sequences.

    It knows the sequences that rich writes: colors, and the erased lines of a live display.
    """
    lines, row = [""], 0
    for piece in _PIECE.findall(written):
        if piece == "\n":
            row += 1
            if row == len(lines):
                lines.append("")
        elif piece == "\x1b[2K":
            lines[row] = ""
        elif piece.startswith("\x1b[") and piece.endswith("A"):
            row = max(0, row - int(piece[2:-1] or 1))
        elif not piece.startswith("\x1b") or piece.endswith("m"):
            lines[row] += piece if piece != "\r" else ""
    while lines and not Text.from_ansi(lines[-1]).plain.strip():
        lines.pop()
    return lines


def draw(lines: list[str], path: Path) -> None:
    """Write the lines of a terminal as an SVG file that fetches no font."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), emoji=False)
    for line in lines:
        console.print(Text.from_ansi(line), soft_wrap=True)
    picture = _REMOTE.sub("", console.export_svg(title="make demo"))
    fonts = "ui-monospace, SFMono-Regular, Menlo, DejaVu Sans Mono, monospace"
    text = "\n".join(line.rstrip() for line in picture.replace("Fira Code, monospace", fonts).splitlines())
    path.write_text(f"{text}\n", encoding="utf-8")


def main() -> int:
    """Draw the picture; return the demo's exit status."""
    parser = argparse.ArgumentParser(description="Run the demo and draw a picture of its terminal.")
    parser.add_argument("path", nargs="?", type=Path, default=ROOT / "docs/demo.svg", help="the SVG file to write")
    path: Path = parser.parse_args().path
    with tempfile.TemporaryDirectory() as folder:
        walle = str(Path(sys.executable).with_name("walle"))
        status, written = record([walle, "demo"], Path(folder))
    lines = screen(written)
    if status:
        print("\n".join(Text.from_ansi(line).plain for line in lines), file=sys.stderr)
        print(f"the demo ended with {status}; no picture was written", file=sys.stderr)
        return status
    draw(lines, path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
