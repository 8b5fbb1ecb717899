import base64
import contextlib
import dataclasses
import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walle.deploy.signing import MANIFEST_DOMAIN, SignatureError, Signer, TrustedKeys, key_id
from walle.errors import ConfigError
from walle.protocol import Directive, Envelope, FileEntry, Manifest, TriggerCondition

BUNDLE, RELEASE = Signer.generate(), Signer.generate()
TRUSTED = TrustedKeys.of(BUNDLE, RELEASE)
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
ENVELOPE = BUNDLE.sign_manifest(MANIFEST).to_bytes()


def test_signed_manifest_and_directive_are_believed() -> None:
    assert TRUSTED.verify_manifest(ENVELOPE) == MANIFEST
    TRUSTED.verify_directive(RELEASE.sign_directive(DIRECTIVE))


def test_each_role_signs_only_its_own_kind() -> None:
    with pytest.raises(SignatureError, match="no valid signature of a trusted bundle key"):
        TRUSTED.verify_manifest(RELEASE.sign_manifest(MANIFEST).to_bytes())
    with pytest.raises(SignatureError, match="directive for 'shop/ipv': not signed by a trusted release key"):
        TRUSTED.verify_directive(BUNDLE.sign_directive(DIRECTIVE))


def test_one_kind_never_passes_for_the_other_even_with_one_key() -> None:
    both = TrustedKeys.of(BUNDLE, BUNDLE)
    directive = BUNDLE.sign_directive(DIRECTIVE)
    signature = base64.b64decode(directive.signature)
    for payload in (DIRECTIVE.signed_bytes(), DIRECTIVE.signed_bytes().removeprefix(MANIFEST_DOMAIN)):
        with pytest.raises(SignatureError, match="no valid signature"):
            both.verify_manifest(Envelope(payload, {BUNDLE.key_id: signature}).to_bytes())


@given(st.integers(0, len(ENVELOPE) * 8 - 1))
def test_flipped_bit_in_an_envelope_changes_nothing_that_is_believed(bit: int) -> None:
    data = bytearray(ENVELOPE)
    data[bit // 8] ^= 1 << bit % 8
    with contextlib.suppress(SignatureError):
        assert TRUSTED.verify_manifest(bytes(data)) == MANIFEST  # a bit that base64 or JSON ignores


@pytest.mark.parametrize(
    ("field", "value"),
    [("task", "shop/x"), ("version", "v2"), ("manifest", "b" * 64), ("size_bytes", 1), ("serial", 4), ("expires_s", 9)],
)
def test_changed_field_of_a_directive_is_noticed(field: str, value: object) -> None:
    signed = RELEASE.sign_directive(DIRECTIVE)
    with pytest.raises(SignatureError):
        TRUSTED.verify_directive(dataclasses.replace(signed, **{field: value}))  # type: ignore[arg-type]
    TRUSTED.verify_directive(dataclasses.replace(signed, url="https://other.example", release="r2"))


@pytest.mark.parametrize("signature", ["", "%%%", "ü", "AAAA", base64.b64encode(bytes(64)).decode()])
def test_directive_with_a_bad_signature_is_refused(signature: str) -> None:
    with pytest.raises(SignatureError):
        TRUSTED.verify_directive(dataclasses.replace(DIRECTIVE, signature=signature))


@given(st.binary(max_size=200) | st.text(max_size=50).map(str.encode))
def test_no_bytes_are_believed_unsigned(data: bytes) -> None:
    with pytest.raises(SignatureError):
        TRUSTED.verify_manifest(data)


def test_signed_bytes_that_are_no_manifest_are_refused() -> None:
    signature = BUNDLE._key.sign(MANIFEST_DOMAIN + b"{}")
    with pytest.raises(SignatureError, match=r"is signed, but cannot be read: manifest\.format"):
        TRUSTED.verify_manifest(Envelope(b"{}", {BUNDLE.key_id: signature}).to_bytes())


def test_a_second_signature_does_no_harm() -> None:
    envelope = BUNDLE.sign_manifest(MANIFEST)
    more = {**RELEASE.sign_manifest(MANIFEST).signatures, **envelope.signatures, "x": b"junk"}
    assert TRUSTED.verify_manifest(Envelope(envelope.payload, more).to_bytes()) == MANIFEST


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


def test_trusted_keys_survive_json() -> None:
    value = json.loads(json.dumps(TRUSTED.to_json()))
    again = TrustedKeys.from_json(value)
    assert (again.bundle, again.release) == (TRUSTED.bundle, TRUSTED.release)
    assert again.verify_manifest(ENVELOPE) == MANIFEST


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "must be an object"),
        ({"bundle": {}}, "release must map"),
        ({"bundle": {"a": 1}, "release": {}}, "bundle key 'a' is not base64"),
        ({"bundle": {"a": "AAAA"}, "release": {}}, "bundle key 'a' has 3 bytes"),
        (
            {"bundle": {}, "release": {"a": base64.b64encode(bytes(32)).decode()}},
            f"wrong id, its own is {key_id(bytes(32))}",
        ),
    ],
)
def test_bad_trusted_keys_are_refused(value: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrustedKeys.from_json(value)


def test_verifying_loads_nothing_of_the_cloud() -> None:
    code = "import sys, walle.deploy.signing; print(sorted({n.split('.')[0] for n in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"dulwich", "fastapi", "starlette", "uvicorn", "numpy", "ray"} & set(eval(loaded))
