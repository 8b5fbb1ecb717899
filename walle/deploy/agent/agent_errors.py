"""Why a device's agent did not carry out a directive."""

from walle.errors import DeployError
from walle.protocol import Directive, Failure


class DirectiveRefusedError(DeployError):
    """A directive that is ignored: signed wrongly, expired, or older than one already seen."""

    def __init__(self, directive: Directive, reason: str) -> None:
        super().__init__(f"directive {directive.serial} for {directive.task[:200]!r} is refused: {reason}")
        self.task = directive.task
        self.serial = directive.serial
        self.reason = reason


class SupersededError(DeployError):
    """A pull cancelled by a newer directive, because the active version failed meanwhile, or by `close`."""

    def __init__(self, directive: Directive, why: str) -> None:
        super().__init__(f"the pull of {directive.task} {directive.version} was cancelled: {why}")
        self.task = directive.task
        self.serial = directive.serial


class PullDelayedError(DeployError):
    """A directive whose pull failed by the network a moment ago. It tries again when it comes after `left_s`."""

    def __init__(self, directive: Directive, left_s: float) -> None:
        super().__init__(f"{directive.task} {directive.version} is pulled again in {left_s:.1f} s at the earliest")
        self.task = directive.task
        self.left_s = left_s


class CheckFailedError(DeployError):
    """A version whose check ran its code, which failed. `what` says what failed."""

    def __init__(self, what: str, failure: Failure) -> None:
        super().__init__(f"{what}: {failure.error}")
        self.failure = failure


class ActivationPostponedError(DeployError):
    """A version that cannot replace the active one now, for a reason that passes, such as a full disk.

    Nothing is reported, because it says nothing of the version. The same directive activates it later, without a pull.
    """

    def __init__(self, task: str, version: str, reason: str) -> None:
        super().__init__(f"{task} {version} is not activated yet, its directive will try again: {reason}")
        self.task = task
        self.version = version
        self.reason = reason


class ActivationFailedError(DeployError):
    """A version that passed its check but could not be activated; the device has fallen back."""

    def __init__(self, task: str, version: str, reason: str) -> None:
        super().__init__(f"{task} {version} could not be activated: {reason}")
        self.task = task
        self.version = version
        self.reason = reason
