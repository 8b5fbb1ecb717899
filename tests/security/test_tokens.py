"""Tokens of people and programs: made once, stored as hashes, refused when expired or revoked, and never shown."""

import asyncio
import errno
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer.main

from tests.sim.git_host import git
from tests.sim.person import Person
from tests.sim.program import Programs
from walle.access.access import Access, Role
from walle.access.access_file import AccessFile, LastAdminError, TokenExistsError, UnknownTokenError
from walle.base.clock import ManualClock
from walle.cli import app
from walle.client.cloud_client import CloudRefusedError
from walle.cloud import CloudHome
from walle.cloud.api.releases import error_status
from walle.errors import ConfigError, WalleError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    access = Access()
    access.issue("root", {"*": Role.ADMIN})
    access.save(tmp_path / "access.toml")
    return tmp_path / "access.toml"


# --- the file ---------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_change_acts_in_every_gateway_within_5_seconds(path: Path) -> None:
    clock = ManualClock()
    here, there = AccessFile(path, clock=clock), AccessFile(path, clock=clock)
    token = here.add("anna", {"shop": Role.AUTHOR}, made_by="root")
    assert here.identify(token) is not None
    await clock.advance(5)
    found = there.identify_header(f"Bearer {token}")
    assert found is not None
    assert (found.name, found.made_by, found.made_s) == ("anna", "root", clock.time() - 5)
    here.revoke("anna")
    assert here.identify(token) is None
    await clock.advance(5)
    assert there.identify(token) is None


@pytest.mark.asyncio
async def test_a_token_expires_by_the_clock_and_its_last_use_is_kept(path: Path) -> None:
    clock = ManualClock()
    access = AccessFile(path, clock=clock)
    token = access.add("ci", {"shop": Role.RELEASER}, expires_s=clock.time() + 100)
    assert access.last_uses_s() == {}
    assert access.identify(token) is not None
    used_s = clock.time()
    access._save_uses()
    assert token not in path.with_name("token-use.json").read_text()
    assert AccessFile(path).last_uses_s() == {"ci": used_s}
    await clock.advance(100)
    assert access.identify(token) is None
    assert access.last_uses_s() == {"ci": used_s}  # a refusal is not a use


def test_an_unreadable_file_leaves_the_earlier_tokens_in_force_with_an_error(path: Path) -> None:
    clock = ManualClock()
    access = AccessFile(path, clock=clock)
    token = access.add("anna", {"shop": Role.READER})
    good = path.read_bytes()
    for damage in (lambda: path.write_text("[tokens"), path.unlink):
        damage()
        asyncio.run(clock.advance(1))
        assert access.identify(token) is not None
        health = access.health()
        assert not health["ok"]
        assert "previous tokens stay in force" in health["error"]
        path.write_bytes(good)
        asyncio.run(clock.advance(1))
        assert access.health() == {"ok": True, "tokens": 2, "error": ""}


def test_a_change_on_another_thread_is_not_undone_by_an_earlier_read(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    here, there = AccessFile(path, clock=clock), AccessFile(path, clock=clock)
    token = here.add("anna", {"shop": Role.READER})
    there.add("ci", {"shop": Role.READER})
    asyncio.run(clock.advance(1))
    load = Access.load

    def slow(found: Path, *, clock: Any) -> Access:
        access = load(found, clock=clock)
        monkeypatch.setattr(Access, "load", load)
        here.revoke("anna")  # revoked on this thread, between the read and what follows it
        return access

    monkeypatch.setattr(Access, "load", slow)
    here.identify("nobody's")
    asyncio.run(clock.advance(1))
    assert here.identify(token) is None


@pytest.mark.parametrize(("code", "message"), [(errno.ENOSPC, "disk is full"), (errno.EROFS, "cannot be written")])
def test_a_token_that_cannot_be_stored_says_why_and_changes_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch, code: int, message: str
) -> None:
    access = AccessFile(path)
    token = access.add("anna", {"shop": Role.READER})

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("walle.access.access.write_file", fail)
    with pytest.raises(WalleError, match=message) as raised:
        access.revoke("anna")
    assert error_status(raised.value) == (507 if code == errno.ENOSPC else 422)
    with pytest.raises(WalleError, match=message):
        access.add("ci", {"shop": Role.READER})
    assert access.identify(token) is not None
    assert [one.name for one in access.identities()] == ["root", "anna"]


def test_names_are_taken_once_and_the_last_lasting_admin_stays(path: Path) -> None:
    access = AccessFile(path)
    access.add("soon", {"*": Role.ADMIN}, expires_s=9e9)
    for name, error in (("root", LastAdminError), ("nobody", UnknownTokenError)):
        with pytest.raises(error):
            access.revoke(name)
    with pytest.raises(TokenExistsError):
        access.add("soon", {"shop": Role.READER})
    access.add("second", {"*": Role.ADMIN})
    access.revoke("root")
    assert [one.name for one in access.identities()] == ["soon", "second"]


@pytest.mark.parametrize(
    ("roles", "branches", "message"),
    [
        ({"shop": Role.ADMIN}, {}, "admin is for the whole cloud"),
        ({"shop": Role.METRICS}, {}, "metrics is for the whole cloud"),
        ({"../x": Role.READER}, {}, "GROUP"),
        ({"shop": Role.AUTHOR}, {"shop": ()}, "list of 1 to 100"),
        ({"shop": Role.AUTHOR}, {"shop": ("a\nb",)}, "not a pattern"),
    ],
)
def test_a_wrong_role_makes_no_token(path: Path, roles: Any, branches: Any, message: str) -> None:
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=message):
        AccessFile(path).add("x", roles, branches=branches)
    assert path.read_bytes() == before


def test_a_folder_with_older_roles_is_migrated_at_start(tmp_path: Path) -> None:
    home = CloudHome(tmp_path)
    home.prepare()
    admin = home.admin_token
    old = (tmp_path / "access.toml").read_text().replace('"*" = "admin"', '"*" = "release"')
    digest = "0" * 64
    old += f'\n[tokens.bert]\nsha256 = "{digest}"\nroles = {{ shop = "write", "*" = "read", bank = "release" }}\n'
    (tmp_path / "access.toml").write_text(old)
    again = CloudHome(tmp_path)
    again.prepare()
    text = (tmp_path / "access.toml").read_text()
    assert '"write"' not in text
    found = again.access.identify(admin)
    assert found is not None
    assert found.role("any") is Role.ADMIN
    (bert,) = (one for one in again.access.identities() if one.name == "bert")
    assert bert.roles == {"shop": Role.AUTHOR, "*": Role.READER, "bank": Role.RELEASER}
    again.prepare()
    assert (tmp_path / "access.toml").read_text() == text


# --- a cloud that runs ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    folder = tmp_path_factory.mktemp("tokens")
    with Programs() as start:
        program = start(
            "cloud", "up", str(folder), "--http-port=0", "--tunnel-port=0", "--plain-http", "--scenario=shop", "--json"
        )
        yield folder, program.wait_for(lambda line: "url" in line)["url"]


@pytest.fixture
def admin(tmp_path: Path, cloud: tuple[Path, str]) -> Person:
    folder, url = cloud
    person = Person(tmp_path / "admin", url)
    said = person.json("login", url, "--token-file", str(folder / "admin.token"))
    assert said == {"url": url, "name": "admin", "roles": {"*": "admin"}, "git": True}
    return person


def test_a_token_is_made_used_listed_and_revoked(tmp_path: Path, cloud: tuple[Path, str], admin: Person) -> None:
    folder, url = cloud
    made = admin.json("token", "add", "anna", "--role=shop=author:count,news-*", "--role=*=reader", "--days=2")
    token = made["token"]
    assert token not in (folder / "access.toml").read_text()
    assert stat.S_IMODE((folder / "access.toml").stat().st_mode) == 0o600
    anna = Person(tmp_path / "anna", url)
    assert anna.json("login", url, say=f"{token}\n")["name"] == "anna"
    assert stat.S_IMODE(anna.credentials.stat().st_mode) == 0o600
    assert anna.json("release", "status") == []

    listed = admin.json("token", "list")
    assert token not in json.dumps(listed)
    assert "sha256" not in json.dumps(listed)
    (found,) = (one for one in listed if one["name"] == "anna")
    assert (found["roles"], found["branches"]) == ({"shop": "author", "*": "reader"}, {"shop": ["count", "news-*"]})
    assert (found["made_by"], found["used_s"] is not None) == ("admin", True)
    assert 1.9 < (found["expires_s"] - found["made_s"]) / 86_400 <= 2
    assert "shop=author:count,news-*" in admin.run("token", "list").stdout

    for words in (["token", "list"], ["token", "revoke", "admin"], ["token", "add", "x", "--role=shop=reader"]):
        with pytest.raises(CloudRefusedError, match="does not have the role admin"):
            anna.run(*words)
    with pytest.raises(CloudRefusedError, match="already"):
        admin.run("token", "add", "anna", "--role=shop=reader")
    with pytest.raises(CloudRefusedError, match="not a role"):
        admin.run("token", "add", "bert", "--role=shop=owner")
    with pytest.raises(CloudRefusedError, match="only lasting token"):
        admin.run("token", "revoke", "admin")
    assert admin.run("token", "revoke", "anna").exit_code == 0
    with pytest.raises(CloudRefusedError, match="walle login"):
        anna.run("release", "status")
    with pytest.raises(CloudRefusedError, match="token 'anna' does not exist"):
        admin.run("token", "revoke", "anna")


def test_git_gets_the_token_from_walle_and_no_address_has_it(
    tmp_path: Path, cloud: tuple[Path, str], admin: Person
) -> None:
    _, url = cloud
    file = tmp_path / "author.token"
    admin.json("token", "add", "author", "--role=shop=author:count", f"--save-to={file}")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    author = Person(tmp_path / "author", url)
    assert author.git("clone", "-q", f"{url}/git/shop.git", "before").returncode != 0
    author.json("login", url, f"--token-file={file}")
    cloned = author.git("clone", "-q", f"{url}/git/shop.git")
    assert cloned.returncode == 0, cloned.stderr
    work = author.home / "shop"
    git(work, "commit", "-q", "--allow-empty", "-m", "one")
    pushed = author.git("-C", "shop", "push", "-q", "origin", "HEAD:refs/heads/count")
    assert pushed.returncode == 0, pushed.stderr
    refused = author.git("-C", "shop", "push", "-q", "origin", "HEAD:refs/heads/other")
    assert "author may not push to this branch" in refused.stderr
    deleted = author.git("-C", "shop", "push", "-q", "origin", ":refs/heads/main")
    assert deleted.returncode != 0
    token = file.read_text().strip()
    for path in (work / ".git" / "config", author.home / ".gitconfig"):
        assert token not in path.read_text()
    asked = author.run("git-credential", "get", say=f"protocol=http\nhost={url.partition('//')[2]}\n\n")
    assert asked.stdout == f"username=walle\npassword={token}\n"
    assert author.run("git-credential", "get", say="protocol=http\nhost=evil.example\n\n").stdout == ""

    assert admin.run("token", "revoke", "author").exit_code == 0
    assert author.git("-C", "shop", "fetch").returncode != 0
    assert token not in author.credentials.read_text()  # git says that it was refused, and it is forgotten


def test_a_token_of_the_environment_goes_to_its_cloud_alone(tmp_path: Path) -> None:
    person = Person(tmp_path, "http://cloud.example:8470")
    person.environment["WALLE_TOKEN"] = "walle_secret"
    asked = person.run("git-credential", "get", say="protocol=http\nhost=cloud.example:8470\n")
    assert "password=walle_secret" in asked.stdout
    for said in ("protocol=https\nhost=cloud.example:8470\n", "protocol=http\nhost=cloud.example\n", ""):
        assert person.run("git-credential", "get", say=said).stdout == ""


def test_a_wrong_token_is_not_kept_and_a_file_that_others_can_read_is_refused(
    tmp_path: Path, cloud: tuple[Path, str]
) -> None:
    _, url = cloud
    person = Person(tmp_path, url)
    with pytest.raises(CloudRefusedError):
        person.run("login", url, say="walle_wrong")
    for wrong in ("", "two words", "x" * 1001, "ö"):
        with pytest.raises(ConfigError, match="not a token"):
            person.run("login", url, say=wrong)
    assert not person.credentials.exists()
    person.credentials.parent.mkdir(parents=True)
    person.credentials.write_text('[clouds."http://a"]\ntoken = "t"\n')
    person.credentials.chmod(0o644)
    with pytest.raises(ConfigError, match="others can read it; run: chmod 600"):
        person.run("release", "status")
    person.credentials.chmod(0o600)
    for text in ("clouds = 1", "[clouds.a]\nx = 1", "[clouds.a]\ntoken = 1", "["):
        person.credentials.write_text(text)
        with pytest.raises(ConfigError, match="log in again"):
            person.run("release", "status")


def test_no_option_of_any_command_takes_a_token_itself() -> None:
    def options(command: Any) -> Iterator[str]:
        for child in getattr(command, "commands", {}).values():
            yield from options(child)
        yield from (name for one in command.params for name in one.opts)

    found = set(options(typer.main.get_command(app)))
    assert "--token-file" in found
    assert not {name for name in found if "token" in name} - {"--token-file", "--metrics-token-file", "--git-token-gb"}


def test_the_answer_with_a_new_token_is_not_kept_by_caches(cloud: tuple[Path, str]) -> None:
    folder, url = cloud
    headers = {"Authorization": f"Bearer {(folder / 'admin.token').read_text().strip()}"}
    with httpx.Client(base_url=url, headers=headers, timeout=60) as http:
        body = {"name": "a b/ü", "roles": {"shop": "reader"}}
        made = http.post("/v1/tokens", json=body)
        assert (made.status_code, made.headers["cache-control"]) == (201, "no-store")
        who = http.get("/v1/whoami", headers={"Authorization": f"Bearer {made.json()['token']}"}).json()
        assert (who["name"], who["roles"]) == ("a b/ü", {"shop": "reader"})
        wrongs: list[dict[str, Any]] = [{"roles": {}}, {"roles": {"shop": 1}}, {"days": 0}, {"days": -1}]
        for wrong in (*wrongs, {"name": ""}, {"x": 1}):
            assert http.post("/v1/tokens", json={**body, "name": "z", **wrong}).status_code == 422
        assert http.delete("/v1/tokens/a%20b%2F%C3%BC").status_code == 204
