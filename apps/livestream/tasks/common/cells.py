"""The cells of a detector's grids: of strides 8, 16 and 32, one grid after the other, rows first."""

STRIDES = (8, 16, 32)


def cell(place: int, side: int) -> "tuple[int, int]":
    """Return the stride of a place in the joined grids, and its cell in that grid; `side` is the input's, in pixels.

    Raises:
        IndexError: the grids have fewer cells.
    """
    for stride in STRIDES:
        cells = (side // stride) ** 2
        if place < cells:
            return stride, place
        place -= cells
    raise IndexError(place)
