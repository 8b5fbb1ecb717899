"""Commands of `walle features`."""

from walle.cli.features.commands import register

__all__ = ["register"]
