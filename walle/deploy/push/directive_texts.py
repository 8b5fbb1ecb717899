"""Encoded directives of a release table: their JSON, and the response headers of answers that many devices get."""

from collections.abc import Sequence

from walle.protocol import DEVICE_HEADER, PROFILE_HEADER, TASKS_HEADER, Directive, canonical_json

type Headers = tuple[tuple[bytes, bytes], ...]

_TASKS = TASKS_HEADER.lower().encode()
# No shared cache may give one device's answer to another.
_VARY = (b"vary", f"{PROFILE_HEADER}, {DEVICE_HEADER}".encode())
_MAX_ANSWERS = 1024


def tasks_header(text: str) -> Headers:
    """Return the response headers of an answer."""
    return (_TASKS, text.encode()), _VARY


class DirectiveTexts:
    """Texts by the identities of directives, which one table keeps: `clear` them for another."""

    def __init__(self) -> None:
        self._answers: dict[tuple[int, ...], Headers] = {}
        self._texts: dict[int, str] = {}

    def __len__(self) -> int:
        """Return how many answers are kept."""
        return len(self._answers)

    def text(self, directive: Directive) -> str:
        """Return the JSON of a directive."""
        text = self._texts.get(id(directive))
        if text is None:
            text = self._texts[id(directive)] = canonical_json(directive.to_json()).decode()
        return text

    def size(self, directive: Directive) -> int:
        """Return the characters of a directive in an answer, with its comma."""
        return len(self.text(directive)) + 1

    def listed(self, directives: Sequence[Directive]) -> str:
        """Return the JSON of a list of directives."""
        return f"[{','.join(map(self.text, directives))}]"

    def answer(self, directives: Sequence[Directive]) -> Headers:
        """Return the response headers of an answer with these directives alone."""
        key = tuple(map(id, directives))
        known = self._answers.get(key)
        if known is None:
            known = tasks_header(self.listed(directives))
            if len(self._answers) >= _MAX_ANSWERS:
                self._answers.clear()
            self._answers[key] = known
        return known

    def clear(self) -> None:
        self._answers.clear()
        self._texts.clear()
