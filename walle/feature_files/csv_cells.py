"""Texts in cells of CSV files: none begins as a formula, which a spreadsheet would compute when the file is opened.

A text that begins with `= + - @`, a tab or a line break gets an apostrophe in front (CWE-1236). So does one whose first
character after spaces, quotes and characters that are not shown is such a character, or its full-width form.

Where the comma is the decimal sign, a spreadsheet splits cells at `;`, whatever the file's quotes, and ends a row at
each line break. So such a character gets an apostrophe also where it follows `;`, a tab or a line break within a text.

A program that reads the file removes the apostrophes by `text_of_cell`; numbers and truth values have none.
"""

import re

_MARK = "'"
_UNSEEN = r"\s'\"\x00-\x1f\x7f-\xa0\xad\u180e\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff"
_FORMULA = "=+\\-@＝＋－＠−﹢﹣﹦﹫"
_BEGIN = re.compile(rf"'*[\t\r\n]|[{_UNSEEN}]*[{_FORMULA}]")
_WITHIN = re.compile(rf"(?<![{_UNSEEN};])[{_UNSEEN};]++(?=[{_FORMULA}])")  # whole runs alone, in linear time
_SEPARATORS = re.compile(r"[;\t\r\n]")
_IN_JSON = re.compile(rf";(?=[{_UNSEEN}]*[{_FORMULA}])")


def cell_of_text(text: str) -> str:
    """Return the cell for a text, with an apostrophe where a cell could begin as a formula."""
    cell = _WITHIN.sub(lambda run: run[0] + _MARK if _SEPARATORS.search(run[0]) else run[0], text)
    return _MARK + cell if _BEGIN.match(cell) else cell


def text_of_cell(cell: str) -> str:
    """Return the text for which `cell_of_text` gave this cell."""
    text = cell[1:] if cell.startswith(_MARK) and _BEGIN.match(cell) else cell
    return _WITHIN.sub(lambda run: run[0].removesuffix(_MARK) if _SEPARATORS.search(run[0]) else run[0], text)


def cell_of_json(text: str) -> str:
    """Return the cell for JSON of a list or table: the same JSON, in which no `;` is before a formula."""
    return _IN_JSON.sub(r"\\u003b", text)
