"""An engineer's working copy of a scenario's repository, and `git push` with the real git."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from walle.errors import WalleError


class GitError(WalleError):
    """The git client failed; the message has its output."""


class TaskRepo:
    """A clone of a scenario's repository in `folder`, with a branch for each task."""

    def __init__(self, folder: Path, cloud_url: str, scenario: str, token: str) -> None:
        url = urlsplit(cloud_url)
        self._remote = f"{url.scheme}://engineer:{token}@{url.netloc}/git/{scenario}.git"
        self._folder = folder
        self._token = token

    def push(self, task: str, version: str, write: Callable[[Path], object]) -> None:
        """Commit what `write` puts into the folder as a version, tag it `TASK/VERSION`, and push branch and tag.

        The branch has only the task's files.

        Raises:
            GitError: git refused, or is not installed.
        """
        if not self._folder.exists():
            self._git("clone", "--quiet", self._remote, str(self._folder), folder=self._folder.parent)
        if self._git("branch", "--list", task):
            self._git("checkout", "--quiet", task)
        else:
            self._git("checkout", "--quiet", "--orphan", task)
        for path in self._folder.iterdir():
            if path.name != ".git":
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        write(self._folder)
        self._git("add", "--all")
        self._git("commit", "--quiet", "-m", f"{task} {version}")
        self._git("tag", f"{task}/{version}")
        self._git("push", "--quiet", "origin", task, f"{task}/{version}")

    def _git(self, *arguments: str, folder: Path | None = None) -> str:
        who = ["-c", "user.name=engineer", "-c", "user.email=engineer@example.invalid"]
        try:
            return subprocess.run(
                ["git", *who, *arguments],
                cwd=folder or self._folder,
                check=True,
                capture_output=True,
                text=True,
                timeout=60,
            ).stdout
        except FileNotFoundError:
            raise GitError("git is not installed; get it with: sudo apt-get install git") from None
        except subprocess.CalledProcessError as error:
            said = error.stderr.replace(self._token, "***").strip()
            raise GitError(f"git {arguments[0]} failed: {said}") from error
