"""HTTPS of a cloud: by its own authority, pinned by its people and devices; by files; and behind a proxy."""

import asyncio
import contextlib
import hashlib
import json
import os
import random
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from typer.testing import CliRunner

from tests.sim.person import Person
from tests.sim.program import LIMIT_S, Program, Programs
from tests.sim.shop_cloud import until
from walle.access.identity.authority import Authority
from walle.base.clock import ManualClock
from walle.base.file_coding import format_dictionary
from walle.cli import app
from walle.client.cloud_client import CloudCertificateError
from walle.cloud import Cloud, CloudConfig, CloudHome
from walle.cloud.http.https import CertificateFiles, CertificateFilesError
from walle.errors import ConfigError
from walle.protocol import FileEntry

NGINX = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
OPERATE = Path(__file__).parents[2] / "docs" / "how-to" / "operate.md"


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("https") / "cloud"
    with Programs() as start:
        program = start("cloud", "up", str(folder), "--http-port=0", "--tunnel-port=0", "--scenario=shop", "--json")
        yield folder, program.wait_for(lambda line: "url" in line)


# --- the cloud's own authority ----------------------------------------------------------------------------------------


def test_a_cloud_serves_https_with_a_certificate_of_its_ca(cloud: tuple[Path, dict[str, Any]]) -> None:
    _, said = cloud
    assert said["url"].startswith("https://127.0.0.1:")
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(f"{said['url']}/healthz", timeout=LIMIT_S)
    context = ssl.create_default_context(cafile=said["ca_file"])
    answer = httpx.get(f"{said['url']}/healthz", verify=context, timeout=LIMIT_S)
    assert (answer.json(), answer.http_version) == ({"ok": True}, "HTTP/1.1")
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"{said['url'].replace('https', 'http')}/healthz")
    der = ssl.PEM_cert_to_DER_cert(Path(said["ca_file"]).read_text())
    assert said["ca_fingerprint"] == hashlib.sha256(der).hexdigest()


@pytest.mark.night
def test_people_pin_the_authority_and_commands_and_git_trust_it(
    tmp_path: Path, cloud: tuple[Path, dict[str, Any]]
) -> None:
    folder, said = cloud
    url, token = said["url"], f"--token-file={folder / 'admin.token'}"
    stranger = Person(tmp_path / "stranger", url)
    with pytest.raises(CloudCertificateError, match=f"run `walle login {url}`"):
        stranger.run("release", "status")
    with pytest.raises(ConfigError, match=f"fingerprint {said['ca_fingerprint']}; .* --fingerprint"):
        stranger.run("login", url, token)  # nobody is there to be asked
    with pytest.raises(ConfigError, match="another fingerprint"):
        stranger.run("login", url, token, f"--fingerprint={'0' * 64}")
    assert not stranger.credentials.exists()

    colons = ":".join(re.findall("..", said["ca_fingerprint"].upper()))
    for name, option in (("file", f"--ca-file={said['ca_file']}"), ("print", f"--fingerprint={colons}")):
        person = Person(tmp_path / name, url)
        assert person.json("login", url, token, option)["name"] == "admin"
        assert person.json("release", "status") == []
        assert person.json("token", "list")[0]["name"] == "admin"
        assert person.json("device", "list")["total"] == 0
        assert person.run("features", "tail").exit_code == 0
        cloned = person.git("clone", "-q", f"{url}/git/shop.git")
        assert cloned.returncode == 0, cloned.stderr
        (person.home / "shop" / "model").write_bytes(random.Random(name).randbytes(3_000_000))  # more than any buffer
        for words in (
            ["add", "."],
            ["commit", "-q", "-m", "a model"],
            ["push", "-q", "origin", f"HEAD:refs/heads/{name}"],
        ):
            done = person.git("-C", "shop", "-c", "user.name=p", "-c", "user.email=p@example", *words)
            assert done.returncode == 0, done.stderr
        assert person.json("login", url, token)["name"] == "admin"  # the authority stays pinned
        assert person.json("logout", url)["forgotten"]
        assert person.git("-C", "shop", "fetch").returncode != 0
    behind = Person(tmp_path / "behind", url)  # a company's proxy, whose authority is all that git is to trust
    behind.environment |= {"GIT_SSL_CAINFO": "/etc/company.pem"}
    warned = behind.run("login", url, token, f"--ca-file={said['ca_file']}")
    assert "git trusts the authorities of GIT_SSL_CAINFO alone" in warned.stderr
    program = Person(tmp_path / "program", url)  # no home: the program runs in CI
    program.environment |= {"WALLE_TOKEN": (folder / "admin.token").read_text().strip()}
    program.environment |= {"WALLE_CA_FILE": said["ca_file"]}
    assert program.json("release", "status") == []


HSTS = ["max-age=31536000"]


def test_every_answer_over_https_has_strict_transport_security(cloud: tuple[Path, dict[str, Any]]) -> None:
    """Pages, the API, files, git, redirects, refusals of the guard, of limits and of the parser itself."""
    folder, said = cloud
    context = ssl.create_default_context(cafile=said["ca_file"])
    admin = {"Authorization": f"Bearer {(folder / 'admin.token').read_text().strip()}"}
    with httpx.Client(base_url=said["url"], verify=context, timeout=LIMIT_S) as http:
        for method, path, headers, status in (
            ("GET", "/healthz", {}, 200),
            ("GET", "/", {}, 303),
            ("GET", "/dashboard/login", {}, 200),
            ("GET", "/dashboard/static/walle.css", {}, 200),
            ("GET", "/dashboard", {}, 303),
            ("GET", "/v1/releases", {}, 401),
            ("GET", "/v1/releases", admin, 200),
            ("GET", "/v1/releases/none", admin, 404),
            ("POST", "/v1/releases", admin, 422),
            ("GET", "/git/shop.git/info/refs?service=git-upload-pack", admin, 200),
            ("GET", "/git/shop.git/info/refs?service=git-upload-pack", {}, 401),
            ("GET", "/cdn/none", {}, 403),
            ("GET", "/cen/none", {}, 404),
            ("GET", "/none", {}, 404),
            ("GET", "/a%0Ab", {}, 400),
            ("PUT", "/v1/checkin", {}, 413),
            ("PUT", "/dashboard/login", {}, 413),
        ):
            answer = http.request(method, path, headers=headers, content=bytes(100_000) if method == "PUT" else None)
            assert (path, answer.status_code) == (path, status)
            assert (path, answer.headers.get_list("strict-transport-security")) == (path, HSTS)
    port = int(said["url"].rpartition(":")[2])
    with (
        socket.create_connection(("127.0.0.1", port), LIMIT_S) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as tls,
    ):
        tls.sendall(b"no request of HTTP\r\n\r\n")
        answer_head = tls.recv(4096)
    assert answer_head.startswith(b"HTTP/1.1 400 ")
    assert answer_head.count(b"strict-transport-security: max-age=31536000\r\n") == 1


def test_an_answer_over_http_has_no_strict_transport_security(tmp_path: Path) -> None:
    with Programs() as start:
        words = ("--http-port=0", "--tunnel-port=0", "--json", "--plain-http", "--trust-proxy=127.0.0.1")
        said = start("cloud", "up", str(tmp_path / "cloud"), *words).wait_for(lambda line: "url" in line)
        for path in ("/healthz", "/dashboard/login", "/none", "/a%0Ab"):
            over_http = httpx.get(f"{said['url']}{path}", timeout=LIMIT_S)
            assert "strict-transport-security" not in over_http.headers
            behind_proxy = httpx.get(f"{said['url']}{path}", headers={"X-Forwarded-Proto": "https"}, timeout=LIMIT_S)
            assert behind_proxy.headers.get_list("strict-transport-security") == HSTS


def test_a_device_joins_over_https(tmp_path: Path, cloud: tuple[Path, dict[str, Any]]) -> None:
    _, said = cloud
    with Programs() as start:
        paths = [str(tmp_path / "device"), f"--join={said['join_file']}", "--id=d-https"]
        device = start("device", "run", *paths, "--checkin-s=0.1", "--status-s=0.1", "--json")
        device.wait_for(lambda line: "state" in line)
        admin = Person(tmp_path / "admin", said["url"])
        admin.json("login", said["url"], f"--token-file={said['admin_token_file']}", f"--ca-file={said['ca_file']}")
        end_s = time.monotonic() + LIMIT_S
        while not admin.json("device", "list")["total"]:
            assert time.monotonic() < end_s
            time.sleep(0.1)


@pytest.mark.night
def test_plain_http_beyond_this_machine_is_warned_of(tmp_path: Path) -> None:
    with Programs() as start:
        ports = ("--http-port=0", "--tunnel-port=0", "--json", "--plain-http")
        program = start("cloud", "up", str(tmp_path / "a"), *ports, "--host=0.0.0.0", "--name=cloud.example")
        assert program.wait_for(lambda line: "url" in line)["url"].startswith("http://cloud.example:")
        os.kill(program.process.pid, signal.SIGTERM)
        assert program.end() == 0
        assert "has no TLS" in program.errors
    for wrong in (
        ["--tls-cert=x"],
        ["--tls-key=x"],
        ["--tls-cert=x", "--tls-key=y", "--plain-http"],
        ["--trust-proxy=x"],
    ):
        assert CliRunner().invoke(app, ["cloud", "up", str(tmp_path / "b"), *wrong]).exit_code == 2


# --- a certificate in files -------------------------------------------------------------------------------------------


def certificate(folder: Path) -> tuple[Path, Path, Path]:
    """Write a certificate of a new authority for 127.0.0.1, and its key; return authority, certificate and key."""
    authority = Authority(folder)
    return authority.ca_path, authority.server_path, authority.server_path


async def _shown(port: int) -> bytes | None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    shown: bytes | None = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return shown


@pytest.mark.asyncio
async def test_a_certificate_in_files_is_shown_and_renewed_without_a_restart(tmp_path: Path) -> None:
    ca_path, chain, _ = await asyncio.to_thread(certificate, tmp_path / "first")
    _, other, _ = await asyncio.to_thread(certificate, tmp_path / "second")
    files = tmp_path / "chain.pem", tmp_path / "key.pem"
    for file in files:
        shutil.copy(chain, file)
    clock = ManualClock()
    cloud = Cloud(CloudConfig(folder=tmp_path / "cloud", https=True, tls_cert=files[0], tls_key=files[1]))
    cloud.gateway._clock = clock
    async with cloud:
        context = ssl.create_default_context(cafile=ca_path)
        async with httpx.AsyncClient(base_url=cloud.address.url, verify=context, timeout=LIMIT_S) as http:
            assert (await http.get("/healthz")).json() == {"ok": True}
        port = httpx.URL(cloud.address.url).port
        assert port is not None
        first = await _shown(port)
        shutil.copy(other, files[0])  # the key is still the other one's
        await clock.advance(60)
        assert await _shown(port) == first
        shutil.copy(other, files[1])

        async def is_renewed() -> bool:
            await clock.advance(60)
            return await _shown(port) != first

        await until(is_renewed)


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    _, chain, _ = certificate(tmp_path / "first")
    _, other, _ = certificate(tmp_path / "second")
    (tmp_path / "text").write_text("no certificate")
    for certificate_path, key in ((tmp_path / "text", chain), (tmp_path / "none", chain), (chain, tmp_path / "none")):
        with pytest.raises(CertificateFilesError, match=r"text|none"):
            CertificateFiles(certificate_path, key)
    pem = other.read_text()
    (tmp_path / "key").write_text(pem[: pem.index("-----BEGIN CERTIFICATE")])
    with pytest.raises(CertificateFilesError, match="its own key"):
        CertificateFiles(chain, tmp_path / "key")


# --- behind a proxy ---------------------------------------------------------------------------------------------------


async def _client(request: Request) -> JSONResponse:
    assert request.client is not None
    return JSONResponse({"client": request.client.host, "scheme": request.url.scheme})


@pytest.fixture
def business(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("asking_app")
    vars(module)["make"] = lambda: Starlette(routes=[Route("/client", _client)])
    monkeypatch.setitem(sys.modules, "asking_app", module)


@pytest.mark.asyncio
@pytest.mark.usefixtures("business")
@pytest.mark.parametrize(
    ("proxies", "seen"), [((), "127.0.0.1"), (("127.0.0.0/8",), "9.9.9.9"), (("10.0.0.1",), "127.0.0.1")]
)
async def test_a_client_is_believed_only_from_named_proxies(
    tmp_path: Path, proxies: tuple[str, ...], seen: str
) -> None:
    config = CloudConfig(folder=tmp_path, business_app="asking_app:make", trusted_proxies=proxies)
    async with Cloud(config) as cloud, httpx.AsyncClient(base_url=cloud.address.url, timeout=LIMIT_S) as http:
        headers = {"X-Forwarded-For": "9.9.9.9", "X-Forwarded-Proto": "https"}
        found = (await http.get("/client", headers=headers)).json()
    assert found == {"client": seen, "scheme": "https" if seen == "9.9.9.9" else "http"}


@contextlib.contextmanager
def nginx(folder: Path, cloud_port: int) -> Iterator[int]:
    """Run nginx with the configuration of the manual, changed to run without root at ports and paths of its own."""
    (text,) = re.findall(r"```nginx\n(.*?)```", OPERATE.read_text(), re.DOTALL)
    _, chain, key = certificate(folder / "nginx-tls")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    changes = {
        "/etc/ssl/cloud.example.pem": str(chain),
        "/etc/ssl/cloud.example.key": str(key),
        "/var/cache/nginx/walle": str(folder / "cache"),
        "listen 443": f"listen 127.0.0.1:{port}",
        "127.0.0.1:8470": f"127.0.0.1:{cloud_port}",
    }
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    paths = "".join(
        f"{name}_temp_path {folder}/{name};\n" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    head = f"daemon off;\nmaster_process off;\npid {folder}/pid;\nerror_log stderr warn;\nevents {{}}\n"
    (folder / "nginx.conf").write_text(f"{head}http {{\naccess_log off;\n{paths}{text}\n}}\n")
    assert NGINX is not None
    with subprocess.Popen([NGINX, "-p", str(folder), "-c", str(folder / "nginx.conf")]) as process:
        try:
            end_s = time.monotonic() + LIMIT_S
            while True:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    break
                assert process.poll() is None
                assert time.monotonic() < end_s
                time.sleep(0.02)
            yield port
        finally:
            process.terminate()


def check_coded_files_behind_a_cache(home: CloudHome, http: httpx.Client, prefix: str) -> None:
    """A cache keeps each form of a file apart from the others, and gives each caller what it accepts."""
    old = random.Random(5).randbytes(50_000)
    new = old + b"and a little more"
    entries = [FileEntry("model", home.files.put(data), len(data)) for data in (old, new)]
    home.coded_files.make(entries[1:], [entries[:1]])
    url = f"{prefix}/{entries[1].sha256}"
    difference = {"Accept-Encoding": "dcz, zstd", "Available-Dictionary": format_dictionary(entries[0].sha256)}
    for is_cached in (False, True):
        if is_cached:
            shutil.rmtree(home.folder / "coded-files")
            home.files.remove(entries[1].sha256)
        with http.stream("GET", url, headers=difference) as answer:
            coded = b"".join(answer.iter_raw())
        assert answer.headers["content-encoding"] == "dcz"
        assert len(coded) < 200
        whole = http.get(url, headers={"Accept-Encoding": "identity"})
        assert ("content-encoding" not in whole.headers, whole.content) == (True, new)


@pytest.mark.night
@pytest.mark.skipif(NGINX is None, reason="nginx is not installed (Debian: nginx-light)")
def test_the_manuals_nginx_ends_tls_and_keeps_files_by_their_sha256(tmp_path: Path) -> None:
    with Programs() as start:
        words = (
            "--http-port=0",
            "--tunnel-port=0",
            "--scenario=shop",
            "--json",
            "--plain-http",
            "--trust-proxy=127.0.0.1",
        )
        program: Program = start("cloud", "up", str(tmp_path / "cloud"), *words)
        said = program.wait_for(lambda line: "url" in line)
        with nginx(tmp_path, int(said["url"].rpartition(":")[2])) as port:
            url = f"https://127.0.0.1:{port}"
            person = Person(tmp_path / "person", url)
            ca_file = tmp_path / "nginx-tls" / "ca.pem"
            person.json("login", url, f"--token-file={said['admin_token_file']}", f"--ca-file={ca_file}")
            assert person.json("release", "status") == []
            cloned = person.git("clone", "-q", f"{url}/git/shop.git")
            assert cloned.returncode == 0, cloned.stderr

            home = CloudHome(tmp_path / "cloud")
            content = b"0123456789" * 10_000
            sha256 = home.files.put(content)
            prefix = home.file_addresses.prefix()
            keys = json.loads((tmp_path / "cloud" / "keys" / "files.json").read_text())["keys"]
            with httpx.Client(base_url=url, verify=ssl.create_default_context(cafile=ca_file), timeout=LIMIT_S) as http:
                assert http.get(f"{prefix}/{sha256}").content == content
                home.files.remove(sha256)  # nginx alone has the file from here on
                assert http.get(f"{prefix}/{sha256}").content == content
                part = http.get(f"{prefix}/{sha256}", headers={"Range": "bytes=5-9"})
                assert (part.status_code, part.content) == (206, b"56789")
                forged = prefix[:-1] + ("A" if prefix[-1] != "A" else "B")
                for wrong in (f"{forged}/{sha256}", f"/cdn/x/{sha256}"):
                    assert http.get(wrong).status_code == 403, wrong
                assert http.get(f"/cdn/{sha256}").status_code == 403
                check_coded_files_behind_a_cache(home, http, prefix)
                asked = {"operation": "upload", "objects": [{"oid": "a" * 64, "size": 1}]}
                token = Path(said["admin_token_file"]).read_text().strip()
                answer = http.post("/git/shop.git/info/lfs/objects/batch", json=asked, auth=("any", token))
                upload = answer.json()["objects"][0]["actions"]["upload"]
                assert upload["href"].startswith(f"{url}/git/shop.git/"), "git-lfs sends the file through nginx too"
                assert len(keys) == 1
