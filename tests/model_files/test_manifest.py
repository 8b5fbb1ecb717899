"""The manifest of models: the app's own, and manifests that are wrong."""

from pathlib import Path

import pytest

from walle.model_files import ModelFolder, ModelManifest, ModelManifestError, default_folder
from walle.model_files.manifest import url_refusal

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared/data/models"
LINES = {
    "file": '"net.onnx"', "url": '"https://models.example/net.onnx"', "sha256": f'"{"0a" * 32}"', "bytes": "10",
    "licence": '"MIT"', "source": '"somewhere"', "task": '"faces"', "input": '"x"', "output": '"y"',
}  # fmt: skip
PACKAGE = (
    f'{{ name = "net==1", wheel = "net-1-py3-none-any.whl", sha256 = "{"0b" * 32}", bytes = 9, path = "net/net.onnx" }}'
)


def manifest(name: str = "net", **changed: str | None) -> bytes:
    lines = {key: value for key, value in {**LINES, **changed}.items() if value is not None}
    return f"[models.{name}]\n{''.join(f'{key} = {value}\n' for key, value in lines.items())}".encode()


def test_the_apps_manifest_lists_the_models_of_each_task() -> None:
    models = ModelManifest.read(ROOT / "apps/livestream/models.toml")
    tasks = {"item detection", "item recognition", "face detection", "voice detection", "articles", "palms"}
    assert {entry.task for entry in models.entries.values()} == tasks
    for entry in models.entries.values():
        if entry.package is not None:
            assert entry.package.path.endswith(entry.file)
            assert entry.origin == f"Python package {entry.package.name}"
            continue
        repository, _, rest = entry.source.partition(" @ ")
        commit, _, path = rest.partition(": ")
        assert entry.url == f"https://raw.githubusercontent.com/{repository}/{commit}/{path}"


@pytest.mark.skipif(not DATA.is_dir(), reason="the real models are not beside this checkout")
def test_the_real_files_have_the_manifests_hashes() -> None:
    models = ModelManifest.read(ROOT / "apps/livestream/models.toml")
    for entry in (each for each in models.entries.values() if each.package is None):
        assert ModelFolder(DATA).file(entry).stat().st_size == entry.bytes


def test_a_file_in_a_package_is_read() -> None:
    [entry] = ModelManifest.parse(manifest(url=None, package=PACKAGE), "m.toml").chosen([])
    assert entry.package is not None
    assert (entry.url, entry.origin, entry.package.bytes) == ("", "Python package net==1", 9)
    assert entry.package.tags == ("py3", "none", "any")


def test_it_is_read_and_chosen_from() -> None:
    models = ModelManifest.parse(manifest() + manifest("other", file='"b.onnx"'), "m.toml")
    assert [entry.name for entry in models.chosen([])] == ["net", "other"]
    assert [entry.name for entry in models.chosen(["other", "other"])] == ["other"]
    with pytest.raises(ModelManifestError, match=r"m\.toml: unknown model facs; it lists net, other"):
        models.chosen(["facs"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"[models", "is not TOML"),
        (b"\xff", "is not TOML"),
        (b"", r"must have tables \[models.NAME\]"),
        (b"[models.net]\n[other]\n", "nothing else"),
        (b"models = 3", "must have tables"),
        (b"[models]\nnet = 3", r"\[models.net\]: lacks bytes"),
        (manifest(url=None), r"\[models.net\]: lacks url"),
        (manifest(hash='"x"'), "has unknown keys: hash"),
        (manifest(bytes='"10"'), "bytes must be an integer"),
        (manifest(bytes="true"), "bytes must be an integer"),
        (manifest(bytes="0"), "bytes is 0"),
        (manifest(bytes=str(1 << 40)), "bytes is 1099511627776"),
        (manifest(sha256='"abc"'), "64 lower-case"),
        (manifest(file='"../net.onnx"'), "not a plain file name"),
        (manifest(file='"a/b"'), "not a plain file name"),
        (manifest(licence='""'), "licence must be a text"),
        (manifest(url='"http://models.example/x"'), "not an https address"),
        (manifest(url='"file:///etc/passwd"'), "not an https address"),
        (manifest(url=None, package='"net==1"'), r"\[models.net\] package: lacks bytes, name, path, sha256, wheel"),
        (manifest(package=PACKAGE), "has unknown keys: url"),
        (manifest(url=None, package=PACKAGE.replace("==", ">=")), "is not NAME==VERSION"),
        (manifest(url=None, package=PACKAGE.replace("net==1", "--pre net==1")), "is not NAME==VERSION"),
        (manifest(url=None, package=PACKAGE.replace("net-1-py3", "../net-1-py3")), "is not the name of a wheel"),
        (manifest(url=None, package=PACKAGE.replace("9,", "0,")), "package: bytes is 0"),
        (manifest(url=None, package=PACKAGE.replace("0b", "0B")), "package: sha256 must be 64"),
        (manifest("Net"), "a name has lower-case"),
        (manifest() + manifest("b"), "are both net.onnx"),
        (b"#" * (1 << 21), "more than 1048576 bytes"),
    ],
)
def test_a_wrong_manifest_is_refused_with_its_place(text: bytes, message: str) -> None:
    with pytest.raises(ModelManifestError, match=message) as caught:
        ModelManifest.parse(text, "m.toml")
    assert str(caught.value).startswith("m.toml: ")


def test_an_unreadable_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelManifestError, match="cannot be read"):
        ModelManifest.read(tmp_path / "none.toml")


@pytest.mark.parametrize("url", ["https://[", "https:///x", "", "http://127.0.0.1.example/x", "http://u@evil/x"])
def test_an_address_without_tls_or_host_is_refused(url: str) -> None:
    assert url_refusal(url)


def test_the_default_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_folder({}) == tmp_path / ".cache/walle/models"
    assert default_folder({"XDG_CACHE_HOME": "/big/cache"}) == Path("/big/cache/walle/models")
    assert default_folder({"XDG_CACHE_HOME": "relative"}) == tmp_path / ".cache/walle/models"
    assert default_folder({"XDG_CACHE_HOME": "/big/cache", "WALLE_MODELS": "here"}) == Path("here")
