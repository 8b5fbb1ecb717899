"""Texts in cells of CSV files: none begins as a formula, which a spreadsheet would compute when the file is opened.

A text that begins with `= + - @`, a tab or a line break gets an apostrophe in front (CWE-1236). So does one whose first
character after spaces, apostrophes and characters that are not shown is such a character, or its full-width form. Who
reads the file with a program removes the apostrophe again by `text_of_cell`; numbers and truth values have none.
"""

import re

_MARK = "'"
_UNSEEN = r"[\s'\x00-\x1f\x7f-\xa0\xad\u180e\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff]*"
_FORMULA = re.compile(rf"'*[\t\r\n]|{_UNSEEN}[=+\-@＝＋－＠−﹢﹣﹦﹫]")


def cell_of_text(text: str) -> str:
    """Return the cell for a text: the text, with an apostrophe in front where it would be read as a formula."""
    return _MARK + text if _FORMULA.match(text) else text


def text_of_cell(cell: str) -> str:
    """Return the text for which `cell_of_text` gave this cell."""
    return cell[1:] if cell.startswith(_MARK) and _FORMULA.match(cell) else cell
