"""Two identity nodes at once on one folder and one database, as after a cut of the network: neither harms the other."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import pytest
import pytest_asyncio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.sim.postgres_server import PostgresServer
from walle.access.identity.device_authority import DeviceAuthority
from walle.access.identity.refusals import IdentityRefusedError, KeyRevokedError
from walle.access.identity.service import DeviceCertificate, DeviceSession, IdentityService
from walle.access.identity.sessions import SessionRefusedError, SessionSigner, SessionVerifier
from walle.base.clock import SystemClock
from walle.base.device_identity import DeviceIdentity, Revocations
from walle.base.durable_file import write_new_file
from walle.cloud.folder.config import CloudConfig
from walle.cloud.nodes.identity import IdentityNode
from walle.protocol import session_proof

pytest.importorskip("asyncpg", reason="asyncpg is not installed")

_DAY_S = 86_400.0


class Phone:
    """A device with its key."""

    def __init__(self, device_id: str) -> None:
        self.device_id = device_id
        self._key = ec.generate_private_key(ec.SECP256R1())

    async def certify(self, node: IdentityService, token: str = "") -> DeviceCertificate:
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "device")])
        request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(self._key, hashes.SHA256())
        return await node.certify(self.device_id, request.public_bytes(serialization.Encoding.PEM).decode(), token)

    def proof(self, challenge: str) -> bytes:
        return self._key.sign(session_proof(self.device_id, challenge), ec.ECDSA(hashes.SHA256()))

    async def session(self, node: IdentityService) -> DeviceSession:
        challenge = await node.challenge()
        return await node.session(self.device_id, challenge, self.proof(challenge))


@pytest_asyncio.fixture
async def nodes(tmp_path: Path, postgres: PostgresServer) -> AsyncIterator[tuple[IdentityService, IdentityService]]:
    config = CloudConfig(folder=tmp_path, database=postgres.make_database())
    both = [IdentityNode(config) for _ in range(2)]
    async with contextlib.AsyncExitStack() as undo:
        for node in both:
            undo.push_async_callback(node.close)
        one, other = await asyncio.gather(*(node.start() for node in both))
        yield one, other


async def refused(work: Awaitable[object]) -> bool:
    try:
        await work
    except IdentityRefusedError:
        return True
    return False


@pytest.mark.asyncio
async def test_both_have_one_set_of_keys_and_know_what_the_other_did(
    nodes: tuple[IdentityService, IdentityService],
) -> None:
    one, other = nodes
    assert await one.keys() == await other.keys()
    phone = Phone("phone")
    token = await one.make_token("phone", 1, _DAY_S)
    assert (await phone.certify(other, token)).is_enrolment
    assert not (await phone.certify(one)).is_enrolment  # a renewal, at the other one
    revocations = Revocations()
    verifier = SessionVerifier((await one.keys()).session_key, revocations, now=SystemClock().time)
    sessions = [(await phone.session(node)).token.encode() for node in nodes]
    assert [verifier.identity(session) for session in sessions] == [DeviceIdentity("phone", 1)] * 2
    challenge = await one.challenge()
    proof = phone.proof(challenge)
    with pytest.raises(IdentityRefusedError, match="issued by another cloud"):  # no challenge is used twice
        await other.session("phone", challenge, proof)
    await one.session("phone", challenge, proof)
    await other.revoke("phone", "stolen")
    revocations.update(*await one.revocations(0))
    with pytest.raises(SessionRefusedError):
        verifier.identity(sessions[0])
    for node in nodes:
        with pytest.raises(KeyRevokedError):
            await phone.session(node)
        assert await refused(phone.certify(node, token))


@pytest.mark.asyncio
async def test_both_issue_revoke_and_enrol_at_once(nodes: tuple[IdentityService, IdentityService]) -> None:
    one, other = nodes
    token = await one.make_token("", 12, _DAY_S)
    phones = [Phone(f"phone-{number}") for number in range(16)]
    # Each phone asks both, as one whose first answer is late: a token counts once for it.
    asked = [refused(phone.certify(node, token)) for phone in phones for node in nodes]
    answers = await asyncio.gather(*asked)
    enrolled = [phone for number, phone in enumerate(phones) if not (answers[2 * number] and answers[2 * number + 1])]
    assert len(enrolled) == 12
    assert await refused(Phone("late").certify(other, token))

    tokens = {phone.device_id: await other.make_token(phone.device_id, 1, _DAY_S) for phone in enrolled}
    again = [Phone(phone.device_id) for phone in enrolled]  # each of them with a new key, while it is revoked
    works: list[Awaitable[object]] = []
    for phone in again:
        works += [
            refused(phone.certify(one, tokens[phone.device_id])),
            other.revoke(phone.device_id, "stolen"),
            one.revoke(phone.device_id, "stolen"),
        ]
    done = await asyncio.gather(*works)
    replaced = [phone.device_id for phone, was_refused in zip(again, done[::3], strict=True) if not was_refused]
    version, lowest = await other.revocations(0)
    assert lowest == {phone.device_id: 3 if phone.device_id in replaced else 2 for phone in enrolled}
    assert version == len(enrolled) + len(replaced)  # each change has a version, none has two
    records = {record.device_id: record for record in await one.records("", 100, "")}
    assert len(records) == 12
    assert all(record.revoked_s is not None for record in records.values())
    assert {name for name, record in records.items() if record.generation == 2} == set(replaced)


@pytest.mark.parametrize("made", [DeviceAuthority, SessionSigner])
def test_nodes_that_start_at_once_on_an_empty_folder_have_one_set_of_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: type[DeviceAuthority | SessionSigner]
) -> None:
    """An authority that was replaced would leave certificates that no gateway takes."""
    others = []
    module = sys.modules[made.__module__]

    def late(path: Path, data: bytes) -> bool:
        """Put a key when another node has just put its own."""
        monkeypatch.setattr(module, "write_new_file", write_new_file)
        others.append(made(tmp_path))
        return write_new_file(path, data)

    monkeypatch.setattr(module, "write_new_file", late)
    one = made(tmp_path)
    (other,) = others
    if isinstance(one, SessionSigner):
        assert isinstance(other, SessionSigner)
        assert one.public_key == other.public_key == SessionSigner(tmp_path).public_key
    else:
        assert isinstance(other, DeviceAuthority)
        assert one.ca_pem == other.ca_pem == DeviceAuthority(tmp_path).ca_pem
    assert len(list(tmp_path.iterdir())) == 1
