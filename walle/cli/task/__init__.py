"""Commands of `walle task`."""

from walle.cli.task.commands import register

__all__ = ["register"]
