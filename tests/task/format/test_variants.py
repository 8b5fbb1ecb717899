"""[variants] of task.toml: what is refused and where, and what a version with variants is built of."""

import hashlib

import pytest

from tests.sim.tasks import CONFIG, FILES, task_version
from walle.protocol import Envelope, Manifest, ProtocolError
from walle.task.format.bundle import build_bundle
from walle.task.format.bundle_error import BundleError
from walle.task.format.config import TaskConfig, TaskConfigError
from walle.trust.metadata import RoleKeys, verify_manifest
from walle.trust.signing import SignatureError, Signer

SIGNER = Signer.generate()
FILE = b'[files]\n"resources/m.walle" = "shared"\n"resources/big.walle" = "cloud"\n'
VARIANT = b'[variants.small]\nrule = "ram_mb < 512"\nfiles = {"resources/m.walle" = "resources/s.walle"}\n'
RESOURCES = {"resources/m.walle": b"model", "resources/s.walle": b"small", "resources/big.walle": b"big"}


def _config(tables: bytes) -> TaskConfig:
    return TaskConfig.parse(CONFIG + FILE + tables, "task.toml")


def test_variants_keep_their_order() -> None:
    found = _config(VARIANT + VARIANT.replace(b"small", b"tiny")).variants
    assert [(one.name, one.rule, dict(one.files)) for one in found] == [
        ("small", "ram_mb < 512", {"resources/m.walle": "resources/s.walle"}),
        ("tiny", "ram_mb < 512", {"resources/m.walle": "resources/s.walle"}),
    ]


@pytest.mark.parametrize(
    ("tables", "what"),
    [
        (b"variants = 3", "variants must be a section"),
        (b"[variants]\nsmall = 3", "small must be a table with rule and files"),
        (VARIANT.replace(b"small]", b"Small]"), "Small is not the name of a variant"),
        (VARIANT.replace(b"rule", b"rules"), "small has an unknown key 'rules'"),
        (VARIANT.replace(b'"ram_mb < 512"', b'" "'), "small.rule must be a rule of at most 2000 characters"),
        (VARIANT.replace(b'"ram_mb < 512"', b"1"), "small.rule must be a rule"),
        (b'[variants.small]\nrule = "x"\nfiles = {}\n', "small.files must be a table of files"),
        (
            VARIANT.replace(b"m.walle", b"n.walle"),
            "replaces 'resources/n.walle', which .files. does not list as shared",
        ),
        (VARIANT.replace(b"m.walle", b"big.walle"), "replaces 'resources/big.walle', which .files. does not list"),
        (VARIANT.replace(b"s.walle", b"big.walle"), "'resources/big.walle' is a file of the cloud"),
        (VARIANT.replace(b"resources/s.walle", b"../s.walle"), "must be a plain path from the task's root"),
        (
            b"".join(VARIANT.replace(b"small", b"s%d" % number) for number in range(9)),
            "s8 is one of 9 variants, more than 8",
        ),
    ],
)
def test_a_wrong_variant_is_refused_with_its_line(tables: bytes, what: str) -> None:
    if tables.startswith(b"variants"):
        with pytest.raises(TaskConfigError, match=what):
            TaskConfig.parse(tables + b"\n" + CONFIG, "task.toml")
        return
    with pytest.raises(TaskConfigError, match=what) as caught:
        _config(tables)
    assert caught.value.line > (CONFIG + FILE).count(b"\n")


def test_the_dictionary_of_the_tunnel_is_the_same_for_all() -> None:
    tables = FILE + b'[tunnel]\ndictionary = "resources/m.walle"\n' + VARIANT
    with pytest.raises(TaskConfigError, match=r"which all devices share: it is in \[tunnel\]"):
        TaskConfig.parse(CONFIG + tables, "task.toml")


def test_one_signature_covers_all_variants_and_each_has_an_envelope() -> None:
    version = task_version(FILES | {"task.toml": CONFIG + FILE + VARIANT, **RESOURCES})
    bundle = build_bundle(version, SIGNER)
    (small,) = bundle.variants
    keys = RoleKeys.of([SIGNER.public_key])
    found = {one.sha256: verify_manifest(one.envelope, lambda _: keys) for one in (bundle, small)}
    assert len(found) == 2
    models = {
        one.installed_as: next(file.sha256 for file in one.files if file.path == "resources/m.walle")
        for one in found.values()
    }
    assert models == {
        "v1": hashlib.sha256(b"model").hexdigest(),
        "v1@small": hashlib.sha256(b"small").hexdigest(),
    }
    assert {*models.values()} <= {*bundle.blobs}
    assert all("s.walle" not in file.path for one in found.values() for file in one.files)
    assert Envelope.from_bytes(small.envelope).payload == Envelope.from_bytes(bundle.envelope).payload
    assert Manifest.from_bytes(bundle.manifest.to_bytes()) == bundle.manifest


def test_an_older_walle_refuses_a_version_with_variants() -> None:
    payload = build_bundle(
        task_version(FILES | {"task.toml": CONFIG + FILE + VARIANT, **RESOURCES}), SIGNER
    ).manifest.to_bytes()
    assert b'"format":6' in payload
    assert b"variant" not in build_bundle(task_version(FILES), SIGNER).envelope


def test_an_envelope_of_a_variant_that_the_version_lacks_is_refused() -> None:
    bundle = build_bundle(task_version(FILES | {"task.toml": CONFIG + FILE + VARIANT, **RESOURCES}), SIGNER)
    other = bundle.variants[0].envelope.replace(b'"variant":"small"', b'"variant":"tiny"')
    with pytest.raises(SignatureError, match="no variant 'tiny'"):
        verify_manifest(other, lambda _: RoleKeys.of([SIGNER.public_key]))


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        (b'"name":"small"', b'"name":"../x"', r"variants\[0\]\.name"),
        (b'"path":"resources/m.walle","route":"shared"', b'"path":"../m","route":"shared"', "path"),
        (b'"variants":[{', b'"variants":[3,{', r"variants\[0\]: must be an object"),
        (b'"rule":"ram_mb < 512"', b'"rule":512', r"variants\[0\]\.rule"),
    ],
)
def test_a_hostile_manifest_is_refused(old: bytes, new: bytes, where: str) -> None:
    bundle = build_bundle(task_version(FILES | {"task.toml": CONFIG + FILE + VARIANT, **RESOURCES}), SIGNER)
    payload = bundle.manifest.to_bytes()
    assert old in payload
    with pytest.raises(ProtocolError, match=where):
        Manifest.from_bytes(payload.replace(old, new))


def test_a_file_that_is_missing_or_unlisted_is_named() -> None:
    files = FILES | {"task.toml": CONFIG + FILE + VARIANT, **RESOURCES}
    without = {path: data for path, data in files.items() if path != "resources/s.walle"}
    with pytest.raises(BundleError, match=r"\[variants\] 'resources/s.walle' is not in the tree"):
        build_bundle(task_version(without), SIGNER)
    with pytest.raises(BundleError, match=r"resources/other\.walle is not in"):
        build_bundle(task_version(files | {"resources/other.walle": b""}), SIGNER)
