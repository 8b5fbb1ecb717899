"""A new task as a branch of its scenario's repository, in a worktree beside those of the other tasks."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from walle.cli.task.folder import TaskFolderError


def add_branch(repo: Path, name: str, folder: Path, write: Callable[[], None]) -> None:
    """Make `folder` a worktree of the clone `repo`, on a new branch without history, with the files that `write` makes.

    Nothing of it stays where that fails.

    Raises:
        TaskFolderError: `repo` is not a git repository, it has the branch, or git refuses; or `write` raises it.
    """
    if _git(repo, "rev-parse", "--git-dir", check=False).returncode:
        raise TaskFolderError(repo, "is not a git repository; clone the scenario first: git clone URL/git/SCENARIO.git")
    if not _git(repo, "rev-parse", "--verify", "--quiet", f"refs/heads/{name}", check=False).returncode:
        raise TaskFolderError(repo, f"has the branch {name}: git worktree add {folder} {name}")
    write()
    try:
        # `git worktree add --orphan` came with git 2.42: an empty commit does the same in every version.
        tree = _git(repo, "mktree").stdout.strip()
        commit = _git(repo, "commit-tree", tree, "-m", f"{name}: a new task").stdout.strip()
        kept = folder.with_name(f".{folder.name}.new")
        folder.rename(kept)
        try:
            _git(repo, "worktree", "add", "--quiet", "-b", name, str(folder.absolute()), commit)
            for path in kept.iterdir():
                path.rename(folder / path.name)
            kept.rmdir()
        except BaseException:
            shutil.rmtree(kept, ignore_errors=True)
            raise
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        _git(repo, "worktree", "prune", check=False)
        _git(repo, "branch", "--delete", "--force", name, check=False)
        raise


def _git(repo: Path, *arguments: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
    try:
        done = subprocess.run(
            ["git", "-C", str(repo), *arguments], input="", capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        raise TaskFolderError(repo, "git is not installed") from None
    if check and done.returncode:
        raise TaskFolderError(repo, f"git {arguments[0]}: {done.stderr.strip() or done.returncode}")
    return done
