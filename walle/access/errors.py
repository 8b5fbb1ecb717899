"""Errors of access: a caller without the right to a call."""

from walle.errors import DeployError


class AccessError(DeployError):
    """A caller without the right to a call. `status`: 401 for an unknown token, 403 where its role is too low."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(status, why)
        self.status = status
        self.why = why

    def __str__(self) -> str:
        return self.why
