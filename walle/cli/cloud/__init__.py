"""Commands of `walle cloud`."""

from walle.cli.cloud.commands import register

__all__ = ["register"]
