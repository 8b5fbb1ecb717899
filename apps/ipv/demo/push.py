"""An engineer's working copy of the task, and `git push` with the real git."""

import shutil
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

from apps.ipv.make_encoder import write_encoder
from walle.errors import WalleError

_APP = Path(__file__).parents[1]


class GitError(WalleError):
    """The git client failed; the message has its output."""


class TaskRepo:
    """A clone of the scenario's repository with branch `ipv`."""

    def __init__(self, folder: Path, cloud_url: str, scenario: str, token: str) -> None:
        url = urlsplit(cloud_url)
        self._remote = f"{url.scheme}://engineer:{token}@{url.netloc}/git/{scenario}.git"
        self._folder = folder
        self._token = token

    def push(self, version: str, *, broken: bool = False) -> None:
        """Commit the task as `version` (with the broken files laid over it), tag it `ipv/VERSION`, push branch and tag.

        Raises:
            GitError: git refused, or is not installed.
        """
        if not self._folder.exists():
            self._git("clone", "--quiet", self._remote, str(self._folder), folder=self._folder.parent)
            self._git("checkout", "--quiet", "-b", "ipv")
        shutil.copytree(_APP / "task", self._folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        (self._folder / "resources").mkdir(exist_ok=True)
        write_encoder(self._folder / "resources" / "encoder.walle")
        if broken:
            overlay = _APP / "task_broken"
            shutil.copytree(overlay, self._folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        self._git("add", "--all")
        self._git("commit", "--quiet", "-m", f"ipv {version}")
        self._git("tag", f"ipv/{version}")
        self._git("push", "--quiet", "origin", "ipv", f"ipv/{version}")

    def _git(self, *arguments: str, folder: Path | None = None) -> None:
        who = ["-c", "user.name=engineer", "-c", "user.email=engineer@example.invalid"]
        try:
            subprocess.run(
                ["git", *who, *arguments],
                cwd=folder or self._folder,
                check=True,
                capture_output=True,
                text=True,
                timeout=60,
            )
        except FileNotFoundError:
            raise GitError("git is not installed; get it with: sudo apt-get install git") from None
        except subprocess.CalledProcessError as error:
            said = error.stderr.replace(self._token, "***").strip()
            raise GitError(f"git {arguments[0]} failed: {said}") from error
