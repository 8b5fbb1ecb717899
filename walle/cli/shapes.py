"""Shapes of a model's inputs, as the command line gives them."""

import typer


def parse_shapes(texts: list[str]) -> dict[str, tuple[int, ...]]:
    """Return input → shape of `NAME=2x3` texts; `NAME=` is a scalar."""
    shapes: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, equals, sizes = text.rpartition("=")
        try:
            shapes[name] = tuple(int(size) for size in sizes.split("x") if sizes)
        except ValueError:
            equals = ""
        if not equals or not name or min(shapes[name], default=0) < 0:
            raise typer.BadParameter(f"{text!r} is not NAME=SIZExSIZE...", param_hint="--shape")
    return shapes
