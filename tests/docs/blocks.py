"""Fenced blocks of a page in Markdown, and what its author says of them in the comment before each.

<!-- file: NAME -->        the block is the file NAME of the page's folder
<!-- program: WHY -->      a program of its own, which needs what WHY says
<!-- not run: REASON -->   no test runs it
"""

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

_FENCE = re.compile(r"^( *)```(\S*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_REMARK = re.compile(r"<!-- (file|program|not run): (.+?) -->\n *$")


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block: the line where its text begins, its language, and the remark before it, both empty if none."""

    page: str
    line: int
    language: str
    text: str
    kind: str = ""  # file, program, not run
    remark: str = ""

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(path: Path, root: Path) -> Iterator[Block]:
    """Yield the blocks of a page in order."""
    text = path.read_text(encoding="utf-8")
    for match in _FENCE.finditer(text):
        remark = _REMARK.search(text[: match.start() + len(match[1])])
        inner = "".join(line.removeprefix(match[1]) for line in match[3].splitlines(keepends=True))
        line = text.count("\n", 0, match.start(3)) + 1
        kind, what = (remark[1], remark[2]) if remark else ("", "")
        yield Block(path.relative_to(root).as_posix(), line, match[2], inner, kind, what)
