import base64
import contextlib
import dataclasses
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walle.base.clock import ManualClock
from walle.errors import ConfigError
from walle.protocol import (
    Directive,
    Envelope,
    ExclusiveList,
    FileEntry,
    Manifest,
    SealedFile,
    Timestamp,
    TriggerCondition,
)
from walle.trust.folder import root_body, scenarios_body, sign_metadata
from walle.trust.metadata import RELEASE, ROLES, TIMESTAMP, RoleKeys, Root, Scenarios
from walle.trust.signing import MANIFEST_DOMAIN, SignatureError, Signer

OWNER, BUNDLE, ONLINE, STAMPER = (Signer.generate() for _ in range(4))
CLOCK = ManualClock()
FLEET = "fleet-1"
ROOT = Root.trusted(
    sign_metadata(
        root_body(
            1,
            FLEET,
            {role: RoleKeys.of([{RELEASE: ONLINE, TIMESTAMP: STAMPER}.get(role, OWNER).public_key]) for role in ROLES},
            CLOCK,
        ),
        [OWNER],
    )
)
SCENARIOS = Scenarios.verified(
    sign_metadata(scenarios_body(1, {"shop": RoleKeys.of([BUNDLE.public_key])}, CLOCK), [OWNER]), ROOT
)
MANIFEST = Manifest(
    scenario="shop",
    task="ipv",
    version="v1",
    commit="c" * 40,
    bytecode=("cpython-313",),
    trigger=TriggerCondition(("page_exit",)),
    phases={},
    limits={"deadline_ms": 500},
    files=(FileEntry("a", "0" * 64, 3),),
)
DIRECTIVE = Directive(
    task="shop/ipv",
    version="v1",
    manifest="a" * 64,
    size_bytes=700,
    serial=3,
    expires_s=2_000_000_000,
    url="https://cdn.example/cdn",
    release="r1",
)
STAMP = Timestamp(
    fleet=FLEET,
    epoch=1,
    generation=1,
    floor=1,
    root=1,
    scenarios=1,
    scenarios_sha256="a" * 64,
    time_s=10,
    expires_s=20,
)
EXCLUSIVE = ExclusiveList(
    device_id="phone 1",
    generation=1,
    serial=1,
    epoch=1,
    expires_s=20,
    files=(SealedFile(task="shop/ipv", name="a", sha256="a" * 64, size_bytes=100),),
)
ENVELOPE = BUNDLE.sign_manifest(MANIFEST).to_bytes()


def test_signed_manifest_directive_and_timestamp_are_accepted() -> None:
    assert SCENARIOS.verify_manifest(ENVELOPE) == MANIFEST
    ROOT.verify_directive(ONLINE.sign_directive(DIRECTIVE, FLEET))
    ROOT.verify_timestamp(STAMPER.sign_timestamp(STAMP))
    ROOT.verify_exclusive(ONLINE.sign_exclusive(EXCLUSIVE, FLEET))


def test_each_role_signs_only_its_own_kind() -> None:
    for signer in (OWNER, ONLINE, STAMPER):
        with pytest.raises(SignatureError, match="0 valid signatures of the 1 that are needed"):
            SCENARIOS.verify_manifest(signer.sign_manifest(MANIFEST).to_bytes())
    for signer in (OWNER, BUNDLE, STAMPER):
        with pytest.raises(SignatureError, match="directive for 'shop/ipv': not signed by the release role"):
            ROOT.verify_directive(signer.sign_directive(DIRECTIVE, FLEET))
        with pytest.raises(SignatureError, match="list of exclusive files: not signed by the release role"):
            ROOT.verify_exclusive(signer.sign_exclusive(EXCLUSIVE, FLEET))
    for signer in (OWNER, BUNDLE, ONLINE):
        with pytest.raises(SignatureError, match="timestamp: not signed by the timestamp role"):
            ROOT.verify_timestamp(signer.sign_timestamp(STAMP))


def test_one_kind_never_passes_for_another_even_with_one_key() -> None:
    scenarios = dataclasses.replace(SCENARIOS, delegations={"shop": RoleKeys.of([ONLINE.public_key])})
    data = DIRECTIVE.signed_bytes(FLEET)
    signature = base64.b64decode(ONLINE.sign_directive(DIRECTIVE, FLEET).signature)
    for payload in (data, data.removeprefix(MANIFEST_DOMAIN), data.partition(b"\0")[2]):
        with pytest.raises(SignatureError):
            scenarios.verify_manifest(Envelope(payload, {ONLINE.key_id: signature}).to_bytes())


def test_no_two_kinds_of_signed_bytes_begin_alike() -> None:
    kinds = (MANIFEST_DOMAIN, DIRECTIVE.signed_bytes(FLEET), STAMP.signed_bytes(), EXCLUSIVE.signed_bytes(FLEET))
    assert len({data.partition(b"\0")[0] for data in kinds}) == len(kinds)


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(ExclusiveList)])
def test_changed_field_of_a_list_of_exclusive_files_is_noticed(field: str) -> None:
    signed = ONLINE.sign_exclusive(EXCLUSIVE, FLEET)
    value = getattr(signed, field)
    changed: Any = () if field == "files" else value + (1 if isinstance(value, int) else "x")
    with pytest.raises(SignatureError):
        ROOT.verify_exclusive(dataclasses.replace(signed, **{field: changed}))
    with pytest.raises(SignatureError):
        ROOT.verify_exclusive(ONLINE.sign_exclusive(EXCLUSIVE, "fleet-2"))


@given(st.integers(0, len(ENVELOPE) * 8 - 1))
def test_flipped_bit_in_an_envelope_changes_nothing_that_is_accepted(bit: int) -> None:
    data = bytearray(ENVELOPE)
    data[bit // 8] ^= 1 << bit % 8
    with contextlib.suppress(SignatureError):
        assert SCENARIOS.verify_manifest(bytes(data)) == MANIFEST  # a bit that base64 or JSON ignores


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("task", "shop/x"),
        ("version", "v2"),
        ("manifest", "b" * 64),
        ("size_bytes", 1),
        ("serial", 4),
        ("expires_s", 9),
        ("url", "https://other.example"),
        ("release", "r2"),
        ("epoch", 2),
    ],
)
def test_changed_field_of_a_directive_is_noticed(field: str, value: object) -> None:
    signed = ONLINE.sign_directive(DIRECTIVE, FLEET)
    ROOT.verify_directive(signed)
    with pytest.raises(SignatureError):
        ROOT.verify_directive(dataclasses.replace(signed, **{field: value}))  # type: ignore[arg-type]


def test_a_directive_of_another_fleet_is_refused() -> None:
    with pytest.raises(SignatureError):
        ROOT.verify_directive(ONLINE.sign_directive(DIRECTIVE, "fleet-2"))
    with pytest.raises(SignatureError, match="it is of fleet 'fleet-2', this is 'fleet-1'"):
        ROOT.verify_timestamp(STAMPER.sign_timestamp(dataclasses.replace(STAMP, fleet="fleet-2")))


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Timestamp)])
def test_changed_field_of_a_timestamp_is_noticed(field: str) -> None:
    signed = STAMPER.sign_timestamp(STAMP)
    value = getattr(signed, field)
    changed: Any = {"shop/ipv": 1} if isinstance(value, dict) else value + (1 if isinstance(value, int) else "x")
    with pytest.raises(SignatureError):
        ROOT.verify_timestamp(dataclasses.replace(signed, **{field: changed}))


@pytest.mark.parametrize("signature", ["", "%%%", "ü", "AAAA", base64.b64encode(bytes(64)).decode()])
def test_directive_with_a_bad_signature_is_refused(signature: str) -> None:
    with pytest.raises(SignatureError):
        ROOT.verify_directive(dataclasses.replace(DIRECTIVE, signature=signature))


@given(st.binary(max_size=200) | st.text(max_size=50).map(str.encode))
def test_no_bytes_are_accepted_unsigned(data: bytes) -> None:
    with pytest.raises(SignatureError):
        SCENARIOS.verify_manifest(data)
    with pytest.raises(SignatureError):
        ROOT.next(data)
    with pytest.raises(SignatureError):
        Scenarios.verified(data, ROOT)


def test_signed_bytes_that_are_no_manifest_are_refused() -> None:
    payload = b'{"scenario":"shop"}'
    signature = BUNDLE.sign(MANIFEST_DOMAIN + payload)
    with pytest.raises(SignatureError, match=r"is signed, but cannot be read: manifest\.format"):
        SCENARIOS.verify_manifest(Envelope(payload, {BUNDLE.key_id: signature}).to_bytes())


def test_a_second_signature_does_no_harm() -> None:
    envelope = BUNDLE.sign_manifest(MANIFEST)
    more = {**ONLINE.sign_manifest(MANIFEST).signatures, **envelope.signatures, "x": b"junk"}
    assert SCENARIOS.verify_manifest(Envelope(envelope.payload, more).to_bytes()) == MANIFEST


def test_saved_key_is_the_owners_alone_and_signs_the_same(tmp_path: Path) -> None:
    path = tmp_path / "bundle.pem"
    path.write_text("an older key")
    path.chmod(0o644)
    BUNDLE.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]
    assert Signer.load(path).sign_manifest(MANIFEST).to_bytes() == ENVELOPE


@pytest.mark.parametrize("data", [b"", b"nonsense", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"])
def test_an_invalid_key_file_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "key").write_bytes(data)
    with pytest.raises(ConfigError, match=r"signing key .*key is not an unencrypted PEM"):
        Signer.load(tmp_path / "key")
    with pytest.raises(ConfigError, match=r"gone cannot be read: No such file"):
        Signer.load(tmp_path / "gone")


def test_verifying_loads_nothing_of_the_cloud() -> None:
    code = "import sys, walle.deploy.agent.trust; print(sorted({n.split('.')[0] for n in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"dulwich", "fastapi", "starlette", "uvicorn", "numpy", "ray", "tuf"} & set(eval(loaded))
