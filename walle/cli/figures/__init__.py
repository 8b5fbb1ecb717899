"""Commands of `walle figures`."""

from walle.cli.figures.commands import register

__all__ = ["register"]
