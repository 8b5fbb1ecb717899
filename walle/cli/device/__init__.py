"""Commands of `walle device`."""

from walle.cli.device.commands import register

__all__ = ["register"]
