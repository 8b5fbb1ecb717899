"""Attacks on the tunnel's identity of devices, over real sockets: forged certificates, other ids, revoked keys."""

import asyncio
import contextlib
import ctypes
import datetime as dt
import ssl
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from benchmarks.tunnel_authority import TunnelAuthority
from tests.sim.tunnel_rig import RawDevice, bare_server
from walle import protocol
from walle.base.clock import ManualClock
from walle.base.device_identity import DeviceIdentity, Revocations, certified_device
from walle.pipeline.tunnel.client.client import client_context
from walle.pipeline.tunnel.client.sessions import ResumingContext
from walle.pipeline.tunnel.server.server import ServerLimits
from walle.trust import tls

_DAY_S = 86_400.0


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> TunnelAuthority:
    return TunnelAuthority(tmp_path_factory.mktemp("authority"))


def _self_signed(authority: TunnelAuthority, folder: Path) -> ResumingContext:
    """A certificate that names device-0 and the authority of devices, signed by its own key."""
    key, now = ec.generate_private_key(ec.SECP256R1()), dt.datetime.now(dt.UTC)
    issuer = x509.load_pem_x509_certificate(authority.devices.ca_pem.encode()).subject
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Walle device")]))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.UniformResourceIdentifier(DeviceIdentity("device-0", 1).to_uri())]),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (folder / "self.crt").write_bytes(certificate.public_bytes(encoding))
    (folder / "self.key").write_bytes(key.private_bytes(encoding, form, serialization.NoEncryption()))
    return _showing(authority, folder / "self.crt", folder / "self.key")


def _showing(authority: TunnelAuthority, certificate: Path, key: Path) -> ResumingContext:
    context = client_context(authority.ca_path)
    context.show(certificate, key)
    return context


def _of_another_authority(authority: TunnelAuthority, folder: Path) -> ResumingContext:
    return _showing(authority, *TunnelAuthority(folder / "other").certificate("device-0"))


def _expired(authority: TunnelAuthority, folder: Path) -> ResumingContext:
    long_ago = TunnelAuthority(authority.folder, clock=ManualClock(time.time() - 60 * _DAY_S))
    return _showing(authority, *long_ago.certificate("device-0", life_s=30 * _DAY_S + 1))


def _of_the_future(authority: TunnelAuthority, folder: Path) -> ResumingContext:
    later = TunnelAuthority(authority.folder, clock=ManualClock(time.time() + 3 * _DAY_S))
    return _showing(authority, *later.certificate("device-0", life_s=30 * _DAY_S + 2))


def _of_the_server(authority: TunnelAuthority, folder: Path) -> ResumingContext:
    return _showing(authority, authority.server_path, authority.server_path)


def _none(authority: TunnelAuthority, folder: Path) -> ResumingContext:
    return client_context(authority.ca_path)


_FORGERIES = [_none, _self_signed, _of_another_authority, _expired, _of_the_future, _of_the_server]


@pytest.mark.asyncio
@pytest.mark.parametrize("fast", [False, None])
@pytest.mark.parametrize("forge", _FORGERIES)
async def test_a_forged_certificate_gets_no_connection(
    authority: TunnelAuthority,
    tmp_path: Path,
    forge: Callable[[TunnelAuthority, Path], ResumingContext],
    fast: bool | None,
) -> None:
    context = forge(authority, tmp_path)
    async with bare_server(authority, fast_transports=fast) as server, asyncio.timeout(10):
        with contextlib.suppress(OSError):  # TLS 1.3: the client's end of the handshake is over before the server's
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context)
            device = RawDevice(reader, writer)
            device.say(protocol.Hello("device-0", "e", ""))
            assert await device.hear() is None
            writer.transport.abort()
        async with RawDevice.connect(authority, server.port) as honest:
            await honest.hello()
        assert server.counts.connections == 1


@pytest.mark.asyncio
async def test_a_certificate_of_the_right_authority_without_a_device_is_refused(
    authority: TunnelAuthority, tmp_path: Path
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())

    class Nameless(DeviceIdentity):
        def to_uri(self) -> str:
            return "urn:walle:device:x"

    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (tmp_path / "crt").write_text(authority.devices.issue(Nameless("device-0", 1), key.public_key()))
    (tmp_path / "key").write_bytes(key.private_bytes(encoding, form, serialization.NoEncryption()))
    async with bare_server(authority) as server, asyncio.timeout(10):
        context = _showing(authority, tmp_path / "crt", tmp_path / "key")
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context)
        device = RawDevice(reader, writer)
        device.say(protocol.Hello("device-0", "e", ""))
        refusal = await device.hear()
        writer.transport.abort()
    assert isinstance(refusal, protocol.Refusal)
    assert refusal.code == "identity"


@pytest.mark.asyncio
async def test_a_device_can_neither_speak_for_another_nor_cut_its_tunnel(authority: TunnelAuthority) -> None:
    async with (
        bare_server(authority) as server,
        RawDevice.connect(authority, server.port, 0) as victim,
        RawDevice.connect(authority, server.port, 1) as thief,
    ):
        await victim.hello(0)
        thief.say(protocol.Hello("device-0", "e", ""))
        refusal = await thief.hear()
        assert isinstance(refusal, protocol.Refusal)
        assert refusal.code == "identity"
        victim.say(protocol.Ping(7))
        assert await victim.hear() == protocol.Pong(7)
        assert server.counts.refusals == {"identity": 1}


@pytest.mark.asyncio
@pytest.mark.parametrize("fast", [False, None])
async def test_a_resumed_session_is_the_device_that_began_it(authority: TunnelAuthority, fast: bool | None) -> None:
    context = authority.device_context(0)
    async with bare_server(authority, fast_transports=fast) as server, asyncio.timeout(10):
        for name, expected in (("device-0", protocol.Welcome), ("device-1", protocol.Refusal)):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context)
            device = RawDevice(reader, writer)
            device.say(protocol.Hello(name, "e", ""))
            assert isinstance(await device.hear(), expected)
            tls = writer.get_extra_info("ssl_object")
            assert tls.session_reused == (name == "device-1")
            context.keep(tls)
            writer.transport.abort()
        assert server.counts.refusals == {"identity": 1}


@pytest.mark.asyncio
async def test_a_revoked_key_is_cut_and_comes_back_neither_resumed_nor_otherwise(authority: TunnelAuthority) -> None:
    context = authority.device_context(0)
    async with (
        bare_server(authority) as server,
        RawDevice.connect(authority, server.port, 1) as other,
        asyncio.timeout(10),
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context)
        device = RawDevice(reader, writer)
        await device.hello(0)
        await other.hello(1)
        server.revoke(1, {"device-0": 2})
        refusal = await device.hear()
        assert isinstance(refusal, protocol.Refusal)
        assert (refusal.code, refusal.retry_s) == ("revoked", -1.0)
        context.keep(writer.get_extra_info("ssl_object"))
        for again in (context, authority.device_context(0)):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=again)
            assert writer.get_extra_info("ssl_object").session_reused == (again is context)
            device = RawDevice(reader, writer)
            device.say(protocol.Hello("device-0", "e", ""))
            refusal = await device.hear()
            assert isinstance(refusal, protocol.Refusal)
            assert refusal.code == "revoked"
            writer.transport.abort()
        other.say(protocol.Ping(7))
        assert await other.hear() == protocol.Pong(7)


@pytest.mark.asyncio
async def test_the_old_key_of_an_id_does_not_replace_the_new_one(authority: TunnelAuthority) -> None:
    async with bare_server(authority) as server, asyncio.timeout(10):
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", server.port, ssl=authority.device_context(0, generation=2)
        )
        owner = RawDevice(reader, writer)
        await owner.hello(0)
        # The change may not have come here yet: the newer key is enough to know.
        async with RawDevice.connect(authority, server.port, 0) as thief:
            thief.say(protocol.Hello("device-0", "e", ""))
            refusal = await thief.hear()
        assert isinstance(refusal, protocol.Refusal)
        assert refusal.code == "revoked"
        owner.say(protocol.Ping(7))
        assert await owner.hear() == protocol.Pong(7)
        writer.transport.abort()


@pytest.mark.asyncio
async def test_a_connection_ends_with_the_certificate_that_opened_it(authority: TunnelAuthority) -> None:
    clock, limits = ManualClock(time.time()), ServerLimits(idle_s=1e6)
    async with bare_server(authority, clock=clock, limits=limits) as server, asyncio.timeout(10):
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", server.port, ssl=authority.device_context(0, life_s=60.0)
        )
        device = RawDevice(reader, writer)
        await device.hello(0)
        await clock.advance(50.0)
        device.say(protocol.Ping(1))
        assert await device.hear() == protocol.Pong(1)
        await clock.advance(15.0)
        refusal = await device.hear()
        assert isinstance(refusal, protocol.Refusal)
        assert refusal.code == "expired"
        writer.transport.abort()


@pytest.mark.parametrize("device_id", ["a", "phone 1/ü:?#", "x" * 256, "%41"])
def test_any_id_survives_the_certificate(device_id: str) -> None:
    identity = DeviceIdentity(device_id, 7)
    assert DeviceIdentity.from_uri(identity.to_uri()) == identity


@pytest.mark.parametrize(
    "uri", ["", "urn:walle:device:", "urn:walle:device:1:", "urn:walle:device:-1:a", "urn:walle:device:1", "https://a"]
)
def test_no_other_name_is_a_device(uri: str) -> None:
    assert DeviceIdentity.from_uri(uri) is None
    assert certified_device({"subjectAltName": (("URI", uri),), "notAfter": "Jan  1 00:00:00 2030 GMT"}) is None


def test_a_certificate_of_two_devices_identifies_neither() -> None:
    names = tuple(("URI", DeviceIdentity(name, 1).to_uri()) for name in "ab")
    assert certified_device({"subjectAltName": names, "notAfter": "Jan  1 00:00:00 2030 GMT"}) is None
    assert certified_device({}) is certified_device(None) is None


def test_a_revoked_generation_never_becomes_valid_again() -> None:
    revocations = Revocations()
    revocations.update(5, {"a": 3})
    revocations.update(4, {"a": 2, "b": 2})
    assert (revocations.version, revocations.lowest) == (5, {"a": 3, "b": 2})
    assert [revocations.allows(DeviceIdentity("a", number)) for number in (2, 3, 4)] == [False, True, True]


def test_a_server_without_client_certificates_is_not_made(authority: TunnelAuthority) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with pytest.raises(Exception, match="CERT_REQUIRED"):
        bare_server(authority, ssl_context=context)


@pytest.mark.parametrize("answer", ["another context", "refused"])
def test_sessions_that_cannot_be_named_are_not_given(
    authority: TunnelAuthority, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Write no memory of a Python that keeps its contexts otherwise, and have no connection end for a session."""
    named = list[bytes]()

    class Library:
        def __init__(self, _path: str) -> None:
            def options(_pointer: object) -> int:
                return 0 if answer == "another context" else context.options & (1 << 64) - 1

            def name(_pointer: object, text: bytes, _length: int) -> int:
                named.append(text)
                return 0

            self.SSL_CTX_get_options = options
            self.SSL_CTX_set_session_id_context = name

    context = tls.server_tls(authority.server_path, authority.devices.ca_pem)
    tls.name_sessions(context)
    assert context.num_tickets == 1
    monkeypatch.setattr(ctypes, "CDLL", Library)
    tls.name_sessions(context)
    assert context.num_tickets == 0
    assert named == ([] if answer == "another context" else [b"walle tunnel"])
