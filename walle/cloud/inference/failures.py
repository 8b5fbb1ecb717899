"""Errors of fallback inference. Their texts reach the device."""

from walle.errors import DeployError
from walle.pipeline.tunnel.server.handlers import RequestBusyError, RequestExpiredError, RequestRefusedError


class InferenceError(DeployError):
    """A hand-over that cannot be answered: `what` says why, to the device too."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


class InferenceRefusedError(InferenceError, RequestRefusedError):
    """A hand-over that the device may not ask for, or that cannot be read."""


class InferenceFullError(InferenceError, RequestBusyError):
    """A request that is refused at once: the queue is full ("queue"), or too long for its deadline ("wait")."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(what)
        self.reason = reason


class InferenceLateError(InferenceError, RequestExpiredError):
    """A request whose deadline passed before it could run."""


class NoRoomError(InferenceError):
    """A version that is not loaded in advance, since the versions in use need all the memory."""


class ReplicaLostError(InferenceError):
    """A replica ended, or the connection to it did, before it answered a batch. The batch may run again elsewhere."""
