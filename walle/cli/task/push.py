"""Push of a task's next version from its checkout: commit, tag and branch, or nothing of them."""

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from walle.cli.task.folder import TaskFolderError


class Checkout:
    """A worktree on the branch of a task, of a clone whose `origin` is the scenario's repository on the cloud.

    Raises:
        TaskFolderError: it is none, has changes that are not committed, or git may not commit or push here.
    """

    def __init__(self, folder: Path, task: str) -> None:
        self._folder = folder
        self._task = task
        if (branch := self._git("branch", "--show-current").strip()) != task:
            raise TaskFolderError(folder, f"is on the branch {branch or '(none)'}; the task's is {task}")
        if changed := self._git("status", "--porcelain", "--untracked-files=no").split("\n")[0].strip():
            raise TaskFolderError(folder, f"has changes that are not committed ({changed}); commit or undo them first")
        self._git("var", "GIT_AUTHOR_IDENT")
        self._git("push", "--quiet", "--dry-run", "origin", task)

    def push(self, paths: Sequence[str], message: str) -> str:
        """Commit these paths, tag the next version, push both; return the version, such as v3.

        Raises:
            TaskFolderError: git refuses; then the folder is as it was before these paths were changed.
        """
        number = 1 + max(self._numbers(), default=0)
        tag = f"{self._task}/v{number}"
        before = self._git("rev-parse", "HEAD").strip()
        try:
            self._git("add", "--all", "--", *paths)
            self._git("commit", "--quiet", "--message", message)
            self._git("tag", tag)
            self._git("push", "--quiet", "origin", self._task, tag)
        except TaskFolderError:
            self._git("tag", "--delete", tag, check=False)
            self._git("reset", "--quiet", "--hard", before, check=False)  # what was not committed was refused before
            raise
        return f"v{number}"

    def _numbers(self) -> list[int]:
        """Return the numbers of the versions here and on the cloud."""
        pattern = f"refs/tags/{self._task}/v*"
        listed = self._git("ls-remote", "origin", pattern) + self._git("for-each-ref", "--format=%(refname)", pattern)
        return [
            int(number) for number in re.findall(rf"refs/tags/{re.escape(self._task)}/v(\d+)$", listed, re.MULTILINE)
        ]

    def _git(self, *arguments: str, check: bool = True) -> str:
        try:
            done = subprocess.run(
                ["git", "-C", str(self._folder), *arguments], input="", capture_output=True, text=True, check=False
            )
        except FileNotFoundError:
            raise TaskFolderError(self._folder, "git is not installed") from None
        if check and done.returncode:
            said = (done.stderr or done.stdout).strip() or str(done.returncode)
            raise TaskFolderError(self._folder, f"git {arguments[0]}: {said}")
        return done.stdout
