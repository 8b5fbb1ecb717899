"""Commands of `walle adapt`."""

from walle.cli.adapt.commands import register

__all__ = ["register"]
