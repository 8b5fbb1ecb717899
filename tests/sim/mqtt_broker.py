"""A Mosquitto broker for tests, as a child process, whose sessions survive a restart."""

import contextlib
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

START_S = 30.0
PROGRAM = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")


class MqttBroker:
    """A broker on a port of this machine that stays the same.

    `rights` are lines of its access list, `options` of its configuration. `server_pem` is a file of its key and
    certificate: it speaks TLS.
    """

    def __init__(
        self,
        folder: Path,
        *,
        rights: str = "",
        users: dict[str, str] | None = None,
        server_pem: Path | None = None,
        options: Sequence[str] = (),
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as found:
            self.port: int = found.getsockname()[1]
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._scheme = "mqtts" if server_pem else "mqtt"
        folder.mkdir(parents=True, exist_ok=True)
        lines = [
            *options,
            f"listener {self.port} 127.0.0.1",
            "persistence true",
            f"persistence_location {folder}/",
            "autosave_interval 1",
            "max_queued_messages 0",
            "user root",
            f"allow_anonymous {'false' if users else 'true'}",
        ]
        if server_pem:
            lines += [f"certfile {server_pem}", f"keyfile {server_pem}"]
        if rights:
            (folder / "rights").write_text(rights)
            (folder / "rights").chmod(0o600)
            lines.append(f"acl_file {folder}/rights")
        if users:
            passwords = folder / "passwords"
            passwords.touch(mode=0o600)
            for name, password in users.items():
                subprocess.run(["mosquitto_passwd", "-b", passwords, name, password], check=True, capture_output=True)
            lines.append(f"password_file {passwords}")
        (folder / "mosquitto.conf").write_text("\n".join(lines) + "\n")

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self.port}"

    def start(self) -> None:
        with (self._folder / "mosquitto.log").open("ab") as log:
            command = [str(PROGRAM), "-c", str(self._folder / "mosquitto.conf")]
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline_s = time.monotonic() + START_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1.0):
                return
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"mosquitto does not start: {(self._folder / 'mosquitto.log').read_text()[-2000:]}")
            time.sleep(0.02)

    def stop(self) -> None:
        """End it; it writes its sessions first."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None

    def kill(self) -> None:
        """Kill it, so that its connections end without a word."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """Stop it without closing anything, as a machine that lost its power does; `kill` ends it."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
