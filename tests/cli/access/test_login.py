"""`walle login`: which authority is pinned, who has to confirm it, and that no token leaves before."""

import http.server
import json
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sim.person import Person
from walle.access.identity.authority import Authority
from walle.cli.access import login as login_module
from walle.cli.credentials import fingerprint_of
from walle.client.cloud_client import CloudCertificateError
from walle.errors import ConfigError

TOKEN = "walle_a_token_of_anna"


class PlainCloud:
    """A server with its own authority that knows one token, and keeps what it was asked for."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        self.ca_pem = self.authority.ca_path.read_text()
        self.shown_ca = self.ca_pem  # what GET /v1/authority answers
        self.tokens: list[str] = []
        cloud = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                token = self.headers.get("Authorization", "").removeprefix("Bearer ")
                cloud.tokens += [token] if token else []
                if self.path == "/v1/authority":
                    return self._answer(200, cloud.shown_ca)
                if token != TOKEN:
                    return self._answer(401, '{"error": "a token is needed"}')
                return self._answer(200, json.dumps({"name": "anna", "roles": {"shop": "engineer"}}))

            def _answer(self, status: int, text: str) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: object) -> None:
                """Keep the test's output free of requests."""

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                """Ignore clients that end a handshake because they do not trust it."""

        self.server = Server(("127.0.0.1", 0), Handler)
        context = self.authority.server_context()
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True, do_handshake_on_connect=False)
        self.url = f"https://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[PlainCloud]:
    cloud = PlainCloud(tmp_path / "authority")
    thread = threading.Thread(target=cloud.server.serve_forever, args=(0.01,))
    thread.start()
    yield cloud
    cloud.server.shutdown()
    thread.join()
    cloud.server.server_close()


@pytest.fixture
def person(tmp_path: Path, cloud: PlainCloud) -> Person:
    return Person(tmp_path / "person", cloud.url)


def pinned(person: Person) -> str:
    """Return the authority that a person's file of tokens names."""
    (file,) = re.findall(r'ca_file = "(.*)"', person.credentials.read_text())
    return Path(file).read_text()


def test_nobody_who_can_confirm_means_no_token_is_sent_or_kept(cloud: PlainCloud, person: Person) -> None:
    found = fingerprint_of(cloud.ca_pem)
    with pytest.raises(ConfigError, match=f"unknown CA, with the fingerprint {found}; .* --fingerprint"):
        person.run("login", cloud.url, "--no-git", say=TOKEN)
    with pytest.raises(ConfigError, match=f"another fingerprint, {found}; you may be on a wrong host"):
        person.run("login", cloud.url, "--no-git", f"--fingerprint={'0' * 64}", say=TOKEN)
    assert cloud.tokens == []
    assert not person.credentials.exists()


@pytest.mark.parametrize("by", ["file", "fingerprint"])
def test_an_authority_is_pinned_by_its_file_or_fingerprint_and_stays(
    tmp_path: Path, cloud: PlainCloud, person: Person, by: str
) -> None:
    file = tmp_path / "given.pem"
    file.write_text(cloud.ca_pem)
    colons = ":".join(re.findall("..", fingerprint_of(cloud.ca_pem).upper()))
    option = {"file": f"--ca-file={file}", "fingerprint": f"--fingerprint={colons}"}[by]
    assert person.json("login", cloud.url, "--no-git", option, say=TOKEN)["name"] == "anna"
    assert pinned(person) == cloud.ca_pem
    file.unlink()  # the pinned copy is the person's
    assert person.json("login", cloud.url, "--no-git", say=TOKEN)["name"] == "anna"
    assert pinned(person) == cloud.ca_pem
    assert person.json("logout", cloud.url)["forgotten"]
    with pytest.raises(ConfigError, match="unknown CA"):
        person.run("login", cloud.url, "--no-git", say=TOKEN)


def test_a_server_of_another_authority_gets_no_token(tmp_path: Path, cloud: PlainCloud, person: Person) -> None:
    other = Authority(tmp_path / "other").ca_path
    with pytest.raises(CloudCertificateError, match=f"run `walle login {cloud.url}`"):
        person.run("login", cloud.url, "--no-git", f"--ca-file={other}", say=TOKEN)
    cloud.shown_ca = other.read_text()  # a host in between shows another authority
    with pytest.raises(CloudCertificateError):
        person.run("login", cloud.url, "--no-git", f"--fingerprint={fingerprint_of(cloud.shown_ca)}", say=TOKEN)
    assert cloud.tokens == []
    assert not person.credentials.exists()


@pytest.mark.parametrize("is_same", [True, False])
def test_a_person_at_a_terminal_compares_the_fingerprint(
    cloud: PlainCloud, person: Person, monkeypatch: pytest.MonkeyPatch, *, is_same: bool
) -> None:
    class Terminal:
        def isatty(self) -> bool:
            return True

    class System:
        stdin = Terminal()
        stderr = sys.stderr

    asked: list[str] = []

    def confirm(text: str, *, err: bool) -> bool:
        asked.append(text)
        return is_same

    monkeypatch.setattr(login_module, "sys", System)
    monkeypatch.setattr("walle.cli.access.login.typer.confirm", confirm)
    monkeypatch.setattr("walle.cli.access.login.getpass.getpass", lambda _: TOKEN)
    done = person.run("login", cloud.url, "--no-git")
    assert asked == ["Does `walle cloud up` show the same?"]
    assert done.exit_code == (0 if is_same else 1), done.output
    assert person.credentials.exists() is is_same
    assert cloud.tokens == ([TOKEN] if is_same else [])


def test_a_file_that_is_not_a_certificate_is_refused(tmp_path: Path, cloud: PlainCloud, person: Person) -> None:
    file = tmp_path / "given.pem"
    for text in (None, "not a certificate"):
        if text is not None:
            file.write_text(text)
        with pytest.raises(ConfigError):
            person.run("login", cloud.url, "--no-git", f"--ca-file={file}", say=TOKEN)
    assert cloud.tokens == []
