"""Parsing of input shapes on the command line."""

import typer


def parse_shapes(texts: list[str]) -> dict[str, tuple[int, ...]]:
    """Return a dict of input names to shapes, parsed from `NAME=2x3` texts; `NAME=` is a scalar."""
    shapes: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, equals, sizes = text.rpartition("=")
        try:
            shapes[name] = tuple(int(size) for size in sizes.split("x") if sizes)
        except ValueError:
            equals = ""
        if not equals or not name or min(shapes[name], default=0) < 0:
            raise typer.BadParameter(
                f"{text!r} is not of the form NAME=SIZExSIZE..., such as x=8x16", param_hint="--shape"
            )
    return shapes
