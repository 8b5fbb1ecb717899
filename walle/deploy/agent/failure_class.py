"""Classes of failures: whether a version is at fault, or this device, the network or the cloud. Pure."""

import errno

from walle.deploy.agent.fetch import FetchError, WrongLengthError
from walle.deploy.agent.installed import CorruptedError
from walle.engine_ext.vm.host import HostStartError
from walle.engine_ext.vm.loop_calls import HostLost
from walle.protocol import Directive, FailureClass

TRIES_BEFORE_REPORT = 3  # a link that drops once is not reported
_OF_DEVICE = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EACCES}
)
_OF_PORTAL = frozenset({407, 511})  # a proxy, or the page before a network, and not the store


def class_of(error: BaseException) -> FailureClass:
    """Return what an error says is at fault; the version where nothing else is known to be.

    Another error of the disk, such as a name that is too long, comes from what the version has in it.
    """
    match error:
        case WrongLengthError():
            return FailureClass.CLOUD
        case FetchError():
            answered = error.status and error.status not in _OF_PORTAL
            return FailureClass.CLOUD if answered else FailureClass.NETWORK
        case OSError() if error.errno in _OF_DEVICE:
            return FailureClass.DEVICE
        case MemoryError() | CorruptedError() | HostLost() | HostStartError():
            return FailureClass.DEVICE
        case _:
            return FailureClass.VERSION


class Hindrances:
    """Failures to carry out the directives of tasks that say nothing of their versions, until one is carried out.

    They are kept for the newest directive of each task, in memory.
    """

    def __init__(self) -> None:
        self._found: dict[str, tuple[tuple[int, int], dict[FailureClass, int]]] = {}

    def is_news(self, directive: Directive, what: FailureClass, *, tries: int = 1) -> bool:
        """Count a failure; return whether it is the one after `tries` of its class that the cloud is told of."""
        number = (directive.epoch, directive.serial)
        known, counts = self._found.get(directive.task, (number, {}))
        if known != number:
            counts = {}
        counts[what] = counts.get(what, 0) + 1
        self._found[directive.task] = number, counts
        return counts[what] == tries

    def end(self, task: str) -> None:
        """Forget those of a task whose directive was carried out."""
        self._found.pop(task, None)
