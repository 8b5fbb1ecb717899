"""Commands of `walle model`."""

from walle.cli.model.commands import register

__all__ = ["register"]
