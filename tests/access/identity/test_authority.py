"""The cloud's certificate authority: made once, kept privately, its server certificate renewed in time."""

import contextlib
import ssl
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography import x509

from walle.access.identity.authority import Authority, AuthorityError
from walle.base.clock import ManualClock
from walle.errors import ConfigError
from walle.pipeline.tunnel.client.client import client_context

_DAY_S = 86_400.0


def certificate_of(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> str | None:
    """Shake hands in memory as `host`; return the version that was agreed on."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server_end = server.wrap_bio(to_server, to_client, server_side=True)
    client_end = client.wrap_bio(to_client, to_server, server_hostname=host)
    done: set[ssl.SSLObject] = set()
    while len(done) < 2:
        for end in (client_end, server_end):
            try:
                end.do_handshake()
                done.add(end)
            except ssl.SSLWantReadError:
                pass
    return client_end.version()


def test_devices_that_know_the_authority_trust_its_server(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "tls", hosts=["cloud.example", "10.1.2.3"])
    for host in ("localhost", "127.0.0.1", "cloud.example", "10.1.2.3"):
        assert handshake(authority.server_context(), client_context(authority.ca_path), host) == "TLSv1.3"
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(authority.server_context(), client_context(authority.ca_path), "other.example")
    stranger = Authority(tmp_path / "stranger")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(authority.server_context(), client_context(stranger.ca_path), "localhost")


def test_its_certificates_pass_the_strict_check_of_x509(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    context = client_context(authority.ca_path)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    assert handshake(authority.server_context(), context, "localhost") == "TLSv1.3"


def test_keys_are_the_owners_alone_and_nothing_half_written_stays(tmp_path: Path) -> None:
    folder = tmp_path / "tls"
    folder.mkdir(0o700)
    (folder / ".authority.pem.0a.unfinished").write_bytes(b"-----BEGIN")  # a process that was killed leaves this
    Authority(folder)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert modes == {"authority.pem": 0o600, "server.pem": 0o600, "ca.pem": 0o644}
    Authority(tmp_path / "made")
    assert stat.S_IMODE((tmp_path / "made").stat().st_mode) == 0o700
    assert b"PRIVATE" not in (folder / "ca.pem").read_bytes()


def test_a_second_start_loads_what_the_first_made(tmp_path: Path) -> None:
    Authority(tmp_path, hosts=["a.example"])
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    again = Authority(tmp_path, hosts=["a.example"])
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert not again.renew()
    (tmp_path / "ca.pem").unlink()
    assert Authority(tmp_path, hosts=["a.example"]).ca_path.read_bytes() == before["ca.pem"]


def test_new_hosts_get_a_new_server_certificate_of_the_same_authority(tmp_path: Path) -> None:
    ca = client_context(Authority(tmp_path).ca_path)
    authority = Authority(tmp_path, hosts=["new.example"])
    assert handshake(authority.server_context(), ca, "new.example") == "TLSv1.3"
    with pytest.raises(ConfigError, match="bücher"):
        Authority(tmp_path, hosts=["bücher.example"])


@pytest.mark.asyncio
async def test_the_server_certificate_is_renewed_before_it_expires(tmp_path: Path) -> None:
    clock = ManualClock()
    authority = Authority(tmp_path, clock=clock)
    context = authority.server_context()
    first = certificate_of(authority.server_path)
    await clock.advance(59 * _DAY_S)
    assert not authority.renew()
    await clock.advance(2 * _DAY_S)
    assert authority.renew()
    second = certificate_of(authority.server_path)
    assert second.not_valid_after_utc > first.not_valid_after_utc
    assert second.serial_number != first.serial_number
    assert authority.server_context() is context
    # The context that a running server has shows the new one.
    shown = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    shown.check_hostname = False
    shown.verify_mode = ssl.CERT_NONE
    assert _shown_serial(context, shown) == second.serial_number


def _shown_serial(server: ssl.SSLContext, client: ssl.SSLContext) -> int:
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server, server_hostname="localhost"),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    for _ in range(3):
        for end in ends:
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    data = ends[0].getpeercert(binary_form=True)
    assert data is not None
    return x509.load_der_x509_certificate(data).serial_number


@pytest.mark.asyncio
async def test_an_expired_authority_is_refused_with_what_to_do(tmp_path: Path) -> None:
    clock = ManualClock()
    Authority(tmp_path, clock=clock)
    await clock.advance(3651 * _DAY_S)
    with pytest.raises(AuthorityError, match=r"authority\.pem: expired on .*move it away"):
        Authority(tmp_path, clock=clock)


@pytest.mark.parametrize("damage", [b"", b"garbage", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"])
def test_a_damaged_authority_is_named_and_never_replaced(tmp_path: Path, damage: bytes) -> None:
    Authority(tmp_path)
    path = tmp_path / "authority.pem"
    path.write_bytes(damage)
    with pytest.raises(AuthorityError, match=r"authority\.pem: is damaged") as raised:
        Authority(tmp_path)
    assert raised.value.path == path
    assert path.read_bytes() == damage


def test_a_key_of_another_certificate_is_noticed(tmp_path: Path) -> None:
    Authority(tmp_path / "a")
    Authority(tmp_path / "b")
    path = tmp_path / "a" / "authority.pem"
    key, _ = path.read_text().split("-----BEGIN CERTIFICATE-----")
    _, certificate = (tmp_path / "b" / "authority.pem").read_text().split("-----BEGIN CERTIFICATE-----")
    path.write_text(key + "-----BEGIN CERTIFICATE-----" + certificate)
    with pytest.raises(AuthorityError, match="its key is not that of its certificate"):
        Authority(tmp_path / "a")


@pytest.mark.parametrize("damage", ["cut", "foreign"])
def test_a_damaged_or_foreign_server_certificate_is_replaced(tmp_path: Path, damage: str) -> None:
    authority = Authority(tmp_path / "a")
    server = authority.server_path
    foreign = Authority(tmp_path / "b").server_path.read_bytes()
    server.write_bytes(server.read_bytes()[:100] if damage == "cut" else foreign)
    again = Authority(tmp_path / "a")
    assert handshake(again.server_context(), client_context(authority.ca_path), "localhost") == "TLSv1.3"


def test_processes_that_start_at_once_agree_on_one_authority(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from walle.access.identity.authority import Authority\n"
        "sys.stdin.read(1)\n"
        "sys.stdout.write(Authority(Path(sys.argv[1]))._authority[1].serial_number.__str__())\n"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(3)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"x")
        process.stdin.flush()
    serials = {process.communicate(timeout=30)[0] for process in processes}
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert serials == {str(certificate_of(tmp_path / "ca.pem").serial_number).encode()}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["authority.pem", "ca.pem", "server.pem"]
