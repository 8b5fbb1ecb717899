"""Large files that a repository's branches and versions name, in every commit of their histories."""

import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from walle.deploy.git.git_process import GitLimits, GitProcessError, run_git
from walle.deploy.git.repo import RepoError, TaskRepos
from walle.task.format.large_file import MAX_POINTER_BYTES

_LIMITS = GitLimits(memory_bytes=1 << 30, cpu_s=600, wall_s=1800.0, file_bytes=8 << 30)
_OID = re.compile(rb"^oid sha256:([0-9a-f]{64})$", re.MULTILINE)


def named_files(repos: TaskRepos, scenario: str) -> frozenset[str]:
    """Return the sha256 of every large file that a commit names which a ref of the scenario leads to.

    Any short file with the line of a pointer counts, whether a version would take it or not. Blocks for as long as git
    reads all commits and short files.

    Raises:
        RepoError: the scenario does not exist, or an object of its history is missing or damaged.
    """
    with repos.open(scenario) as repo:
        repository = Path(repo.path)
    try:
        with _spool(repos) as listed, _spool(repos) as kinds, _spool(repos) as wanted, _spool(repos) as contents:
            short = f"--filter=blob:limit={MAX_POINTER_BYTES + 1}"
            _git(repository, "rev-list", "--objects", "--no-object-names", "--all", short, stdout=listed)
            form = "--batch-check=%(objectname) %(objecttype)"
            _git(repository, "cat-file", form, "--buffer", stdin=listed, stdout=kinds)
            for line in kinds:
                name, _, kind = line.rstrip().partition(b" ")
                if kind == b"blob":
                    wanted.write(name + b"\n")
            wanted.seek(0)
            _git(repository, "cat-file", "--batch", "--buffer", stdin=wanted, stdout=contents)
            return frozenset(_oids(contents))
    except GitProcessError as error:
        raise RepoError(f"scenario {scenario}", f"its history cannot be read ({error})") from error


def _oids(contents: IO[bytes]) -> Iterator[str]:
    """Yield the sha256 of the pointers in the output of cat-file: a line of each object, its bytes and a newline."""
    while head := contents.readline():
        size_bytes = int(head.split()[2])
        data = contents.read(size_bytes + 1)
        yield from (match.decode() for match in _OID.findall(data))


def _git(repository: Path, *arguments: str, stdout: IO[bytes], stdin: IO[bytes] | bytes = b"") -> None:
    run_git(repository, *arguments, limits=_LIMITS, stdin=stdin, stdout=stdout)
    stdout.seek(0, os.SEEK_SET)  # git wrote behind the back of this object


def _spool(repos: TaskRepos) -> IO[bytes]:
    return tempfile.TemporaryFile(dir=repos.spool)
