"""The middle and the edge of a map of cells."""

TYPE_CHECKING = False  # type checkers take it for true
if TYPE_CHECKING:
    from collections.abc import Sequence

_MARGIN = 2 / 7  # part of a side, on each side of the middle
_EDGE = 1 / 7  # width of the edge as a part of a side


def centre_and_border(cells: "Sequence[Sequence[float]]") -> "tuple[float, float]":
    """Return the means of the middle cells, 3/7 of each side, and of those at the edge, 1/7 of a side wide.

    The map is square, of at least 3 x 3 cells, with values of 0 to 1.
    """
    side = len(cells)
    margin, edge = int(side * _MARGIN), max(1, int(side * _EDGE))
    middle = [value for row in cells[margin : side - margin] for value in row[margin : side - margin]]
    inner = [value for row in cells[edge : side - edge] for value in row[edge : side - edge]]
    rim = side * side - len(inner)
    return sum(middle) / len(middle), max(0.0, sum(map(sum, cells)) - sum(inner)) / rim
