"""Push of a task's next version, made in a worktree of its own: the author's checkout is not touched meanwhile."""

import re
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from walle.cli.task.folder import TaskFolderError


class Checkout:
    """A checkout of a task's branch, in a clone whose `origin` is the scenario's repository on the cloud.

    Raises:
        TaskFolderError: it has another branch, the cloud has newer commits, or git may not commit or push here.
    """

    def __init__(self, folder: Path, task: str) -> None:
        self._folder = folder
        self._task = task
        if (branch := self._git("branch", "--show-current").strip()) != task:
            raise TaskFolderError(folder, f"is on the branch {branch or '(none)'}; the task's is {task}")
        self._git("var", "GIT_AUTHOR_IDENT")
        self._git("push", "--quiet", "--dry-run", "origin", task)
        self._tip()

    def push(self, change: Callable[[Path], Sequence[str]], message: str) -> str:
        """Push the next version; return it, such as v3.

        `change` changes the files of a folder that has the branch's last commit, and returns their paths. Where it
        changes nothing, and that commit is a version already, it is that version. The checkout follows if what is not
        committed in it allows that.

        Raises:
            TaskFolderError: git or the cloud refuses; what the cloud took before that is pushed again by the next try.
        """
        tip = self._tip()
        with tempfile.TemporaryDirectory(prefix="walle-version-") as parent:
            place = Path(parent) / "task"
            self._git("worktree", "add", "--quiet", "--detach", str(place), tip)
            try:
                paths = change(place)
                self._git("add", "--all", "--force", "--", *paths, folder=place)
                if self._git("status", "--porcelain", folder=place).strip():
                    self._git("commit", "--quiet", "--message", message, folder=place)
                commit = self._git("rev-parse", "HEAD", folder=place).strip()
            finally:
                self._git("worktree", "remove", "--force", str(place), check=False)
        tags = self._tags()
        if versions := [number for number, of in tags.items() if of == commit]:
            return f"v{max(versions)}"
        version = f"v{1 + max(tags, default=0)}"
        self._git("push", "--quiet", "origin", f"{commit}:refs/heads/{self._task}")
        self._git("push", "--quiet", "origin", f"{commit}:refs/tags/{self._task}/{version}")
        self._git("fetch", "--quiet", "origin", "tag", f"{self._task}/{version}", check=False)
        self._git("merge", "--quiet", "--ff-only", commit, check=False)
        return version

    def _tip(self) -> str:
        """Return the branch's last commit, which the cloud has too, or has not yet."""
        self._git("fetch", "--quiet", "origin", self._task, check=False)  # a new task has no branch there
        tip = self._git("rev-parse", f"refs/heads/{self._task}").strip()
        listed = self._git("ls-remote", "origin", f"refs/heads/{self._task}").split()
        if listed and self._git("merge-base", listed[0], tip, check=False).strip() != listed[0]:
            raise TaskFolderError(
                self._folder, f"lacks commits of {self._task} that the cloud has; git pull them first"
            )
        return tip

    def _tags(self) -> dict[int, str]:
        """Return the commits of the versions on the cloud and here, by their numbers."""
        pattern = f"refs/tags/{self._task}/v*"
        here = self._git("for-each-ref", "--format=%(objectname)\t%(refname)", pattern)
        listed = re.findall(
            rf"^([0-9a-f]+)\trefs/tags/{re.escape(self._task)}/v(\d+)(?:\^{{}})?$",
            here + self._git("ls-remote", "origin", pattern),
            re.MULTILINE,
        )
        return {int(number): commit for commit, number in listed}

    def _git(self, *arguments: str, check: bool = True, folder: Path | None = None) -> str:
        try:
            done = subprocess.run(
                ["git", "-C", str(folder or self._folder), *arguments],
                input="", capture_output=True, text=True, check=False,
            )  # fmt: skip
        except FileNotFoundError:
            raise TaskFolderError(self._folder, "git is not installed") from None
        if check and done.returncode:
            said = (done.stderr or done.stdout).strip() or str(done.returncode)
            raise TaskFolderError(self._folder, f"git {arguments[0]}: {said}")
        return done.stdout
