"""An ASGI app on a loopback port, and the real git client against it.

Run as a program it is a git server in a process of its own, which may be told to die (SIGKILL) in the middle of a push:
    python -m tests.sim.git_host FOLDER TOKEN_SHA256 [unpacking | adopting | adopted | ref | removed]
"""

import asyncio
import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvicorn
from dulwich.file import _GitFile
from dulwich.refs import DiskRefsContainer

from walle.access.access import Access, Identity, Role
from walle.base.asgi import ASGIApp
from walle.deploy.git import git_http, git_push, quarantine
from walle.deploy.git.repo import TaskRepos
from walle.pipeline.tunnel.server.listener import send_at_once

ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def served(app: ASGIApp) -> Iterator[str]:
    """Serve `app` from a thread; the value is its URL without a slash at the end."""
    listener = socket.create_server(("127.0.0.1", 0))
    send_at_once(listener)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off", timeout_graceful_shutdown=2))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()
        assert not thread.is_alive()


def git(folder: Path, *arguments: str, check: bool = True, limit_s: float = 60) -> subprocess.CompletedProcess[str]:
    """Run git in `folder` with no configuration but ours; its output is an error where it fails."""
    environment = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",  # git-lfs is there
        "HOME": str(folder),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
        **{f"GIT_{who}_{what}": "dev@shop.example" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
    }
    command = ["git", "-c", "init.defaultBranch=main", "-c", "gc.auto=0", *arguments]
    result = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=limit_s, check=False
    )
    if check and result.returncode:
        raise AssertionError(f"git {' '.join(arguments)} failed:\n{result.stdout}{result.stderr}")
    return result


def address(url: str, token: str, scenario: str) -> str:
    """Return the address of a scenario with the token in it, as a user may put it into a remote."""
    return f"{url.replace('://', f'://dev:{token}@')}/git/{scenario}.git"


@contextlib.contextmanager
def process(folder: Path, sha256: str, dies: str = "") -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Serve the repositories in `folder` from a process; `sha256` is of the token that may do everything."""
    command = [sys.executable, "-m", "tests.sim.git_host", str(folder), sha256, dies]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        try:
            assert select.select([child.stdout], [], [], 30)[0], "the git server did not start"
            yield child.stdout.readline().strip(), child
        finally:
            child.kill()


def _die(*_: object, **__: object) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def _rename_and_die(self: Path, target: Path) -> Path:
    os.rename(self, target)  # noqa: PTH104 - the method is this function
    if target.suffix == ".pack":
        _die()
    return target


def main(folder: str, sha256: str, dies: str) -> None:
    if dies == "unpacking":  # git writes the pack at this moment
        vars(quarantine)["run_git"] = _die
    elif dies == "adopting":  # the first file of the pack has moved
        Path.rename = _rename_and_die  # type: ignore[method-assign,assignment]
    elif dies == "adopted":  # objects are stored, no ref is set
        git_push._apply = _die
    elif dies == "ref":  # the ref is in its lock file, which is never renamed
        close = _GitFile.close

        def close_or_die(self: _GitFile) -> None:
            if Path(os.fsdecode(self._filename)).parent.name == "heads":
                _die()
            close(self)

        _GitFile.close = close_or_die  # type: ignore[method-assign]
    elif dies == "removed":  # a branch is gone
        remove = DiskRefsContainer.remove_if_equals

        def remove_and_die(*arguments: Any, **options: Any) -> bool:
            remove(*arguments, **options)
            return bool(_die())

        DiskRefsContainer.remove_if_equals = remove_and_die  # type: ignore[method-assign]
    access = Access([Identity("dev", sha256, {"*": Role.RELEASER})])
    listener = socket.create_server(("127.0.0.1", 0))
    send_at_once(listener)
    sys.stdout.write(f"http://127.0.0.1:{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    app = git_http.git_app(TaskRepos(Path(folder)), access)
    asyncio.run(uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off")).serve([listener]))


if __name__ == "__main__":
    main(*sys.argv[1:4])
