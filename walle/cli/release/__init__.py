"""Commands of `walle release`."""

from walle.cli.release.commands import register

__all__ = ["register"]
