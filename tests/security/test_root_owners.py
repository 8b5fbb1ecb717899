"""Root keys of three owners at three places, two of whom must sign: by commands, as they would."""

import json
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from typer.testing import CliRunner

from walle.base.clock import SystemClock
from walle.base.durable_file import remove_unfinished
from walle.cli import app
from walle.trust.folder import TrustFolder, prepare_trust
from walle.trust.metadata import Root
from walle.trust.root_proposal import RootProposal
from walle.trust.signing import Signer


def run(*arguments: object) -> Any:
    """Return what a `walle trust` command says."""
    result = CliRunner().invoke(app, ["trust", *map(str, arguments), "--json"])
    assert result.exit_code == 0, result.output + str(result.exception)
    return json.loads(result.stdout)


def refused(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["trust", *map(str, arguments)])
    assert result.exit_code
    return " ".join((result.output + str(result.exception)).replace("│", " ").split())


class Owner:
    """A person with a root key in a file, and a folder of public metadata at another place."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.key = folder / "root-key.pem"
        self.public = folder / "root-key.pub"
        folder.mkdir()
        signer = Signer.generate()
        signer.save(self.key)
        self.id = signer.key_id
        key = Ed25519PublicKey.from_public_bytes(signer.public_key)
        self.public.write_bytes(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))

    def sign_there(self, home: Path) -> Any:
        """Carry trust/ and pending/ to this owner's place, sign there, and carry the proposal back."""
        for part in ("trust", "pending"):
            shutil.copytree(home / part, self.folder / part, dirs_exist_ok=True)
        said = run("sign-root", self.folder, "--key", self.key)
        shutil.copytree(self.folder / "pending", home / "pending", dirs_exist_ok=True)
        return said


@pytest.fixture
def home(tmp_path: Path) -> Path:
    run("init", tmp_path / "home", "--scenario=shop", "--fleet=kiosks")
    return tmp_path / "home"


@pytest.fixture
def three(home: Path) -> tuple[Owner, Owner, Owner]:
    """Return Anna, Ben and Carla, whose keys have replaced that of `home`; two of them must sign."""
    owners = Owner(home.parent / "anna"), Owner(home.parent / "ben"), Owner(home.parent / "carla")
    old = home / "offline-keys" / "root.pem"
    run("keys", "add", home, *(owner.public for owner in owners))
    run("keys", "remove", home, Signer.load(old).key_id, "--threshold=2")
    run("sign-root", home, "--key", old)
    owners[0].sign_there(home)
    owners[1].sign_there(home)
    run("publish", home)
    old.unlink()
    return owners


def walk(home: Path) -> Root:
    """Return the newest root metadata as a device reaches them from version 1."""
    root = Root.trusted((home / "trust" / "1.root.json").read_bytes())
    while (path := home / "trust" / f"{root.version + 1}.root.json").exists():
        root = root.next(path.read_bytes())
    return root


def test_a_company_with_three_owners_signs_by_two_of_them(home: Path) -> None:
    anna, ben, carla = (Owner(home.parent / name) for name in ("anna", "ben", "carla"))
    old = home / "offline-keys" / "root.pem"
    first = Signer.load(old).key_id
    proposed = run("keys", "add", home, anna.public, ben.public, carla.public, "--threshold=2")["proposal"]
    assert proposed["file"] == str(home / "pending" / "2.root.json")
    assert f"role root gets key {carla.id}" in proposed["changes"]
    assert "of role root 2 must sign, before 1" in proposed["changes"]
    removed = run("keys", "remove", home, first)["proposal"]
    assert f"role root loses key {first}" in removed["changes"]
    assert "1 more of the present root keys must sign and 2 more of the proposed root keys must sign" in removed["next"]
    assert run("show", home)["root_version"] == 1, "nothing has changed"
    assert "2 more of the proposed root keys must sign" in refused("publish", home)
    assert run("sign-root", home, "--key", old)["proposal"]["signed_by"] == [first]
    assert "1 more of the proposed" in anna.sign_there(home)["proposal"]["next"]
    assert "1 more of the proposed root keys must sign" in refused("publish", home)
    assert "is not one of the root keys" in refused("sign-root", home, "--key", home / "keys" / "release.pem")
    assert carla.sign_there(home)["proposal"]["next"] == "publish it with walle trust publish"
    published = run("publish", home)
    assert (published["root_version"], published["proposal"]) == (2, None)
    assert published["roles"]["root"] == {"keys": sorted([anna.id, ben.id, carla.id]), "threshold": 2}
    assert walk(home).version == 2
    assert "nothing waits for signatures" in refused("publish", home)
    assert "nothing waits for signatures" in refused("sign-root", home, "--key", anna.key)


def test_a_lost_root_key_is_replaced_by_the_two_others(home: Path, three: tuple[Owner, Owner, Owner]) -> None:
    anna, ben, carla = three
    dora = Owner(home.parent / "dora")
    assert "2 root keys must sign, and there would be 1" in refused("keys", "remove", home, anna.id, ben.id)
    run("keys", "remove", home, carla.id)
    run("keys", "add", home, dora.public)
    anna.sign_there(home)
    assert "1 more of the present" in dora.sign_there(home)["proposal"]["next"], "a new key does not admit itself"
    ben.sign_there(home)
    run("publish", home)
    assert set(walk(home).roles["root"].keys) == {anna.id, ben.id, dora.id}
    run("keys", "remove", home, ben.id, "--threshold=1")
    assert "is not one of the root keys" in refused("sign-root", home, "--key", carla.key)


def test_online_and_scenarios_keys_are_rotated_by_two_owners(home: Path, three: tuple[Owner, Owner, Owner]) -> None:
    anna, ben, _ = three
    trust = TrustFolder(home)
    before = trust.root(), trust.online_signer("snapshot").key_id
    proposed = run("rotate", home, "--role=release", "--role=scenarios")["proposal"]
    assert sum("gets key" in change for change in proposed["changes"]) == 2
    assert (trust.root(), trust.online_signer("snapshot").key_id) == before, "the cloud goes on with the old keys"
    run("delegate", home, "toys", "--new")  # meanwhile, with the old scenarios key
    anna.sign_there(home)
    ben.sign_there(home)
    assert "the new scenarios.pem, release.pem is not here" in refused("publish", ben.folder)
    shown = run("publish", home)
    assert set(shown["scenarios"]) == {"shop", "toys"}
    root = walk(home)
    assert trust.online_signer("snapshot").key_id in root.roles["snapshot"].keys
    assert trust.online_signer("snapshot").key_id != before[1]
    run("delegate", home, "books", "--new")
    assert trust.scenarios().version == 4
    assert not list((home / "offline-keys").glob("*pending*/*")), "no private key is left behind"
    assert "several owners change root keys" in refused("rotate", home, "--role=root")


def test_a_changed_or_damaged_proposal_is_neither_signed_nor_published(
    home: Path, three: tuple[Owner, Owner, Owner]
) -> None:
    anna, ben, carla = three
    run("keys", "remove", home, carla.id)
    anna.sign_there(home)
    ben.sign_there(home)
    path = home / "pending" / "3.root.json"
    whole = json.loads(path.read_bytes())
    for change in ({"expires": "2099-01-01T00:00:00Z"}, {"x-walle-fleet": "mine"}, {"version": 4}):
        path.write_text(json.dumps({**whole, "signed": {**whole["signed"], **change}}))
        assert refused("publish", home)
    path.write_text(json.dumps(whole)[:-9])
    for arguments in (("show", home), ("publish", home), ("sign-root", home, "--key", anna.key)):
        assert "remove it to begin again" in refused(*arguments)
    path.unlink()
    assert run("show", home)["proposal"] is None
    run("keys", "add", home, carla.public)
    assert run("show", home)["proposal"]["signed_by"] == [], "a signature is over one proposal"


def test_a_hook_signs_root_metadata(home: Path) -> None:
    code = "import sys, pathlib; from walle.trust.signing import Signer; data = sys.stdin.buffer.read();"
    code += " sys.stdout.buffer.write(Signer.load(pathlib.Path(sys.argv[1])).sign(data))"
    hook = f"{sys.executable} -c {shlex.quote(code)}"
    (home / "offline-keys" / "root.pem").rename(home.parent / "token.pem")
    assert run("rotate", home)["proposal"]["changes"], "root.pem is elsewhere: it waits for a signature"
    run("sign-root", home, "--signer", f"{hook} {home.parent / 'token.pem'}")
    assert run("publish", home)["root_version"] == 2


class Killed(BaseException):
    pass


@pytest.mark.parametrize("command", ["add", "rotate", "sign", "publish"])
def test_a_command_that_is_killed_at_any_rename_leaves_what_was_or_what_is(
    tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kill each command at each rename; then finish it as its user would, and start a cloud on the folder."""
    left, killed = 0, 0
    real = {name: getattr(Path, name) for name in ("replace", "rename")}

    def dying(name: str) -> Any:
        def die(path: Path, target: Path) -> Path:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            moved: Path = real[name](path, target)
            return moved

        return die

    second, clock = Signer.generate(), SystemClock()
    for count in range(30):
        trust = TrustFolder(tmp_path / str(count))
        trust.make("kiosks", ["shop"], clock)
        first = Signer.load(trust.offline / "root.pem")
        steps: dict[str, Callable[[], object]] = {
            "add": lambda: RootProposal(trust).change_root_keys(clock, add=[second.public_key]),  # noqa: B023
            "rotate": lambda: RootProposal(trust).rotate(["targets", "snapshot"], clock),  # noqa: B023
            "sign": lambda: RootProposal(trust).sign(first.sign),  # noqa: B023
            "publish": lambda: RootProposal(trust).publish(clock),  # noqa: B023
        }
        for step, do in steps.items():
            if step == command:
                left = count
                with monkeypatch.context() as patched:
                    for name in real:
                        patched.setattr(Path, name, dying(name))
                    try:
                        do()
                    except Killed:
                        killed += 1
                prepare_trust(trust, ["shop"], clock)  # a cloud starts on it
                root = walk(trust.folder)
                for role in ("snapshot", "timestamp"):
                    assert trust.online_signer(role).key_id in root.roles[role].keys
                trust.delegate(f"toys-{count}", {second.key_id: second.public_key}, 1, clock)
                if step == "publish" and root.version == 2:
                    break
            do()
        root = walk(trust.folder)
        assert root.version == 2
        assert second.key_id in root.roles["root"].keys
        assert trust.online_signer("snapshot").key_id in root.roles["snapshot"].keys
        assert set(trust.scenarios().delegations) == {"shop", f"toys-{count}"}
        assert RootProposal(trust).state() is None
        remove_unfinished(trust.folder / "pending")
        assert list((trust.folder / "pending").iterdir()) == []
        if killed <= count:  # the command had made all its renames
            break
    assert 1 <= killed < 29
