"""An engineer's clone of a scenario, pushed with the real git."""

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from tests.sim.git_host import git


class Engineer:
    """Works in `folder`/SCENARIO on the repository of the cloud at `url`."""

    def __init__(self, folder: Path, url: str, scenario: str, token: str) -> None:
        parts = urlsplit(url)
        self._work = folder / scenario
        git(
            folder, "clone", "--quiet", f"{parts.scheme}://engineer:{token}@{parts.netloc}/git/{scenario}.git", scenario
        )

    def push(self, task: str, version: str, files: Mapping[str, str]) -> None:
        """Commit `files` to the task's branch, tag it TASK/VERSION, and push both."""
        git(self._work, "checkout", "--quiet", "-B", task)
        for path, text in files.items():
            (self._work / path).parent.mkdir(parents=True, exist_ok=True)
            (self._work / path).write_text(text)
        git(self._work, "add", "--all")
        git(self._work, "commit", "--quiet", "--allow-empty", "-m", f"{task} {version}")
        git(self._work, "tag", f"{task}/{version}")
        git(self._work, "push", "--quiet", "origin", task, f"{task}/{version}")
