"""Keys in a PKCS#11 token, which never leave it, by the commands and the program of docs/how-to/sign.md.

The token is SoftHSM's, where it, OpenSC and the Python package python-pkcs11 are installed.
"""

import asyncio
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.sim.shop_cloud import User, shop_cloud
from walle.cli import app
from walle.cli.access.signer import public_key
from walle.trust.folder import TrustFolder
from walle.trust.signing import key_id

_MODULES = (
    os.environ.get("SOFTHSM2_MODULE", ""),
    "/usr/lib/softhsm/libsofthsm2.so",
    "/usr/lib64/softhsm/libsofthsm2.so",
    "/usr/local/lib/softhsm/libsofthsm2.so",
    "/opt/homebrew/lib/softhsm/libsofthsm2.so",
)
PIN = "5678"


def program() -> str:
    """Return the program that the page shows."""
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "sign.md").read_text()
    (found,) = re.findall(r"```python\n(import os\n.*?)```", page, re.DOTALL)
    return str(found)


class Token:
    """A new token in software with one Ed25519 key."""

    def __init__(self, folder: Path, module: str) -> None:
        (folder / "tokens").mkdir()
        configuration = f"directories.tokendir = {folder / 'tokens'}\nobjectstore.backend = file\n"
        (folder / "softhsm2.conf").write_text(configuration)
        self.environment = {"SOFTHSM2_CONF": str(folder / "softhsm2.conf"), "WALLE_PIN": PIN, "PKCS11_MODULE": module}
        self.tool = f"pkcs11-tool --module {module} --token-label walle"
        (folder / "token_sign.py").write_text(program())
        self.signer = f"{sys.executable} {folder / 'token_sign.py'} shop"
        self.public = folder / "shop.pub"
        self.run(f"softhsm2-util --module {module} --init-token --free --label walle --so-pin 1234 --pin {PIN}")
        self.run(f"{self.tool} --login --pin {PIN} --keypairgen --key-type EC:edwards25519 --label shop --id 01")
        self.public.write_bytes(self.run(f"{self.tool} --read-object --type pubkey --label shop"))

    def run(self, command: str) -> bytes:
        environment = {**os.environ, **self.environment}
        return subprocess.run(shlex.split(command), env=environment, capture_output=True, check=True, timeout=60).stdout


@pytest.fixture
def token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Token:
    module = next((path for path in _MODULES if path and Path(path).exists()), None)
    tools = shutil.which("pkcs11-tool"), shutil.which("softhsm2-util"), importlib.util.find_spec("pkcs11")
    if module is None or not all(tools):
        pytest.skip("needs SoftHSM, OpenSC (Debian packages softhsm2, opensc) and the Python package python-pkcs11")
    made = Token(tmp_path, module)
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    return made


def walle(*arguments: object) -> str:
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == 0, result.output + str(result.exception)
    return result.output


def test_a_root_key_in_a_token_signs_root_metadata(tmp_path: Path, token: Token) -> None:
    home = tmp_path / "home"
    walle("trust", "init", home)
    walle("trust", "keys", "add", home, token.public, "--threshold=2")
    walle("trust", "sign-root", home, "--key", home / "offline-keys" / "root.pem")
    walle("trust", "sign-root", home, "--signer", token.signer)
    walle("trust", "publish", home)
    root = TrustFolder(home).root()
    assert (root.version, root.roles["root"].threshold) == (2, 2)
    assert key_id(public_key(str(token.public))) in root.roles["root"].keys


@pytest.mark.asyncio
async def test_a_scenarios_key_in_a_token_signs_a_version_that_devices_run(
    tmp_path: Path, token: Token, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "phone") as phone:
        home = shop.cloud.home
        walle("trust", "delegate", home.folder, "shop", "--public-key", token.public)
        await shop.push("v1")
        release = await shop.release("v1", beta=0)
        monkeypatch.setenv("WALLE_URL", shop.cloud.address.url)
        monkeypatch.setenv("WALLE_TOKEN", home.admin_token)
        arguments = ("sign", "shop", "count", "v1", f"--repo={tmp_path / 'work'}", "--signer", token.signer)
        said = await asyncio.to_thread(walle, *arguments)
        assert f"is signed by {key_id(public_key(str(token.public)))}" in said
        await shop.until(release, "full", users=[User(phone)])
        assert phone.tasks == {"shop/count": "v1"}
