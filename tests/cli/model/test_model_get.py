"""`walle model get` against a real HTTP server."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.model_files.model_server import ModelServer, part, serving, status
from walle.cli import app
from walle.cli.model.files import ModelGetError

DATA = b"weights" * 1000


def manifest(path: Path, address: str, **names: bytes) -> Path:
    lines = []
    for name, data in names.items():
        lines += [f"[models.{name}]", f'file = "{name}.onnx"', f'url = "{address}"', f"bytes = {len(data)}"]
        lines += [f'sha256 = "{hashlib.sha256(data).hexdigest()}"']
        lines += [f'{key} = "-"' for key in ("licence", "source", "task", "input", "output")]
    path.write_text("\n".join(lines))
    return path


def get(*arguments: object) -> Any:
    result = CliRunner().invoke(app, ["model", "get", *map(str, arguments), "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def states(report: Any) -> dict[str, str]:
    return {row["model"]: row["state"] for row in report["models"]}


def test_it_fetches_the_named_models_once(tmp_path: Path) -> None:
    with serving(part(DATA)) as server:
        listed = manifest(tmp_path / "m.toml", server.address, a=DATA, b=DATA)
        first = get("a", "--manifest", listed, "--models-dir", tmp_path / "models")
        second = get("--manifest", listed, "--models-dir", tmp_path / "models")
    assert (states(first), states(second)) == ({"a": "fetched"}, {"a": "was there", "b": "fetched"})
    assert (tmp_path / "models/b.onnx").read_bytes() == DATA
    assert first["models"][0]["received"] == len(DATA)


def test_the_folder_comes_from_the_environment_or_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("WALLE_MODELS", raising=False)
    with serving(part(DATA)) as server:
        listed = manifest(tmp_path / "m.toml", server.address, a=DATA)
        assert get("--manifest", listed)["folder"] == str(tmp_path / "cache/walle/models")
        monkeypatch.setenv("WALLE_MODELS", str(tmp_path / "mine"))
        assert get("--manifest", listed)["folder"] == str(tmp_path / "mine")


def test_one_model_that_fails_does_not_keep_the_others(tmp_path: Path) -> None:
    with serving(status(404), part(DATA)) as server:
        listed = manifest(tmp_path / "m.toml", server.address, a=DATA, b=DATA)
        result = CliRunner().invoke(
            app, ["model", "get", "--manifest", str(listed), "--models-dir", str(tmp_path / "models"), "--json"]
        )
    assert isinstance(result.exception, ModelGetError)
    assert "404" in result.exception.failures["a"]
    report = json.loads(result.stdout)
    assert states(report) == {"b": "fetched"}
    assert report["failures"].keys() == {"a"}


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "models").write_text("a file")
    with serving(part(DATA)) as server:
        listed = manifest(tmp_path / "m.toml", server.address, a=DATA)
        with pytest.raises(ModelGetError, match="models"):
            get("--manifest", listed, "--models-dir", tmp_path / "models")


def test_without_names_the_apps_manifest_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HTTPS_PROXY", _closed_address())
    monkeypatch.setenv("NO_PROXY", "")
    with pytest.raises(ModelGetError) as caught:
        get("face_yunet", "--models-dir", tmp_path / "models")
    assert "raw.githubusercontent.com/ShiqiYu" in caught.value.failures["face_yunet"]
    assert "--models-dir or WALLE_MODELS" in caught.value.failures["face_yunet"]


def _closed_address() -> str:
    """Return the address of a proxy that does not listen: no test reaches the internet."""
    with ModelServer([status(404)]) as server:
        return server.address.removesuffix("/models/net.onnx")
