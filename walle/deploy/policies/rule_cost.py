"""Bounds of the cost of one evaluation of a rule, from its text: patterns, and the texts that it reads.

CEL compiles each pattern at each evaluation, and RE2 may construct a state of its automaton for each character of a
value, which costs as much as the program has instructions. So the programs of all patterns of a rule are bounded
together (`pattern_size`), and so are the values (`MAX_VALUE_CHARS`). Texts that are joined and searched count by the
bytes that are read at the longest values.
"""

from collections.abc import Mapping
from typing import NamedTuple

from walle.deploy.policies.attribute_schema import MAX_VALUE_CHARS, ColumnType
from walle.deploy.policies.cel_tree import Node
from walle.deploy.policies.pattern_size import pattern_size

MAX_PATTERN_CHARS = 500
MAX_INSTRUCTIONS = 600  # instructions of the programs of all patterns of a rule
MAX_READ_BYTES = 1 << 20  # bytes that comparisons, searches and sums of texts read in one evaluation
_VALUE_BYTES = 4 * MAX_VALUE_CHARS
_SEARCHED_AT_ONCE = 64  # bytes of what is searched for that one step compares
_STORED = 10  # times these bounds, which a rule of a release from before them may have


class CostExcess(NamedTuple):
    """A part of a rule with which it costs too much, and why."""

    node: Node
    what: str


def excess(rule: Node, types: Mapping[str, ColumnType], *, is_stored: bool = False) -> CostExcess | None:
    """Return why an evaluation of a rule would cost too much, None where it does not.

    A stored rule, of a release that was made before there were bounds, may have ten times as much.
    """
    return _Count(types, _STORED if is_stored else 1).excess(rule)


class _Count:
    """Costs of the parts of one rule, added up."""

    def __init__(self, types: Mapping[str, ColumnType], times: int) -> None:
        self._types = types
        self._max_instructions = MAX_INSTRUCTIONS * times
        self._max_bytes = MAX_READ_BYTES * times
        self._instructions = 0
        self._bytes = 0
        self._excess: CostExcess | None = None

    def excess(self, node: Node) -> CostExcess | None:
        self._text_bytes(node)
        return self._excess

    def _text_bytes(self, node: Node) -> int:
        """Return the most bytes that the text of a part has, 0 where it is not a text; count what the part costs."""
        if self._excess is not None:
            return 0
        if node.kind == "literal":
            return len(node.value.encode(errors="replace")) if isinstance(node.value, str) else 0
        if node.kind == "name":
            return _VALUE_BYTES if self._types.get(str(node.value)) is ColumnType.STRING else 0
        if node.kind == "call" and node.value == "matches":
            self._count_pattern(node.parts[1])
        parts = [self._text_bytes(part) for part in node.parts]
        if node.kind != "call":
            return max(parts, default=0)
        match node.value:
            case "_+_":
                self._read(node, sum(parts))
                return sum(parts)
            case "_?_:_":
                return max(parts)
            case "contains":
                self._read(node, parts[0] + parts[0] * parts[1] // _SEARCHED_AT_ONCE)
            case "size" | "matches":
                self._read(node, parts[0])
            case _:
                self._read(node, min(parts, default=0))
        return 0

    def _read(self, node: Node, size_bytes: int) -> None:
        self._bytes += size_bytes
        if self._bytes > self._max_bytes:
            what = f"one evaluation could read {self._bytes:,} bytes of text with this part; {self._max_bytes:,} is the"
            self._excess = CostExcess(node, f"{what} most. Join and search fewer texts")

    def _count_pattern(self, pattern: Node) -> None:
        text = str(pattern.value)
        if pattern.kind != "literal":
            return  # refused by the rule's own check
        if len(text) > MAX_PATTERN_CHARS:
            what = f"the pattern has {len(text)} characters; {MAX_PATTERN_CHARS} is the limit"
            self._excess = CostExcess(pattern, what)
            return
        self._instructions += pattern_size(text)
        if self._instructions > self._max_instructions:
            what = f"the patterns of the rule have some {self._instructions:,} instructions with this one"
            most = f"{self._max_instructions} is the limit"
            advice = "repeat less ({n} multiplies), avoid \\p classes, or list texts by 'in'"
            self._excess = CostExcess(pattern, f"{what}; {most}: {advice}")
