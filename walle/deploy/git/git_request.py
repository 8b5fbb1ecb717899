"""A request for a task repository over HTTP, and the errors with which it is answered."""

import dataclasses

from walle.access.access import Identity, Role
from walle.errors import DeployError


class GitHttpError(DeployError):
    """A request that is answered with an HTTP error. `status` is its code; git shows the message to its user."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclasses.dataclass(frozen=True)
class GitRequest:
    """A user's request for a repository and a service. `advertises` is the first half of the exchange."""

    scenario: str
    service: str
    advertises: bool
    identity: Identity
    role: Role
    address: str
