"""Error of a version that cannot be built."""

from walle.errors import DeployError


class BundleError(DeployError):
    """A version of a task, or of a set of modules, that cannot be built. `line` of the wrong file is 0 if unknown."""

    def __init__(self, path: str, reason: str, line: int = 0) -> None:
        super().__init__(f"{path}:{line}: {reason}" if line else f"{path}: {reason}")
        self.path = path
        self.line = line
        self.reason = reason


class UnlistedTopicError(BundleError):
    """A module that queries a topic of another task, which is not under [reads] of task.toml."""
