"""Errors of the release service, and the bounds of which two of them tell."""

from walle.deploy.releases.stage_text import state_text
from walle.errors import DeployError

MAX_UNDER_WAY = 16  # releases of one task at once, each for other devices
MAX_GROUPS_OF_TASK = 100  # different policies in its row


class UnknownReleaseError(DeployError):
    """A release id that is unknown."""

    def __init__(self, release_id: str) -> None:
        super().__init__(release_id)
        self.release_id = release_id

    def __str__(self) -> str:
        return f"release {self.release_id[:100]!r} does not exist; list the releases with: walle release status"


class TaskBusyError(DeployError):
    """Another release of the task for the same devices is under way, or (`is_full`) too many of its releases are."""

    def __init__(self, task: str, release_id: str, state: str, is_full: bool = False) -> None:
        super().__init__(task, release_id, state, is_full)  # all of them: it crosses processes
        self.task = task
        self.release_id = release_id
        self.state = state
        self.is_full = is_full

    def __str__(self) -> str:
        if self.is_full:
            return (
                f"{self.task} has {MAX_UNDER_WAY} releases under way, the most at once, each for other devices; wait"
                f" until one is full, or roll one back, such as with: walle release rollback {self.release_id}"
            )
        return (
            f"release {self.release_id} of {self.task} is under way ({state_text(self.state)}) for the same devices;"
            f" wait until it is full, or roll it back with: walle release rollback {self.release_id}"
        )


class SignedAgainError(DeployError):
    """A release whose version cannot be signed again: another manifest would need another simulation."""

    def __init__(self, release_id: str) -> None:
        super().__init__(release_id)
        self.release_id = release_id

    def __str__(self) -> str:
        return (
            f"release {self.release_id} cannot continue with new signatures: the manifest is another one since walle or"
            " Python of this cloud changed; release a new version"
        )


class TooManyGroupsError(DeployError):
    """A task has versions for as many groups of devices as it can have."""

    def __init__(self, task: str) -> None:
        super().__init__(task)
        self.task = task

    def __str__(self) -> str:
        return (
            f"{self.task} has releases for {MAX_GROUPS_OF_TASK} groups of devices, the limit;"
            " roll back those of groups that no longer need a separate version"
        )
