"""Groups of scenarios: roles for a group follow its scenarios, in every gateway, and a damaged file grants nothing."""

import asyncio
import errno
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sim.git_host import address, git
from tests.sim.person import Person
from tests.sim.program import Programs
from tests.sim.tasks import CONFIG, FILES
from walle.access import scenario_groups
from walle.access.access import ANY_SCENARIO, Access, Identity, Role, group_key
from walle.access.access_file import AccessFile
from walle.access.scenario_groups import GroupFile, NotInGroupError, ScenarioGroups, load_groups
from walle.base.clock import ManualClock, SystemClock
from walle.client.cloud_client import CloudRefusedError
from walle.cloud.folder.folder import CloudHome
from walle.cloud.upkeep.backup import make_backup
from walle.cloud.upkeep.restore import restore_backup
from walle.errors import ConfigError
from walle.store.disk_space import DiskFullError

# --- roles ------------------------------------------------------------------------------------------------------------

SCENARIOS = ("cart", "search", "loans", "shop")
GROUPS = ("shop", "bank")  # a group may be named as a scenario


def person(roles: dict[str, Role], groups: dict[str, str], **more: Any) -> Identity:
    return Identity("anna", "0" * 64, roles, groups=ScenarioGroups(groups), **more)


def test_the_own_entry_goes_before_the_group_and_the_group_before_the_star() -> None:
    groups = {"cart": "shop", "search": "shop"}
    anna = person({"cart": Role.READER, "shop/*": Role.RELEASER, ANY_SCENARIO: Role.AUTHOR}, groups)
    assert [anna.role(one) for one in SCENARIOS] == [Role.READER, Role.RELEASER, Role.AUTHOR, Role.AUTHOR]
    assert person({"shop/*": Role.READER}, groups).readable_scenarios() == frozenset({"cart", "search"})
    assert person({"shop/*": Role.READER}, groups).role("shop") is Role.NONE, "the scenario shop is not the group"
    assert person({"shop": Role.READER}, groups).role("cart") is Role.NONE
    assert person({"shop/*": Role.RELEASER}, groups).role("shop/*") is Role.NONE, "it is not a scenario's name"


def test_branches_are_those_of_the_same_order() -> None:
    branches = {"shop/*": ("ipv",), ANY_SCENARIO: ("news-*",)}
    anna = person({ANY_SCENARIO: Role.AUTHOR}, {"cart": "shop"}, branches=branches)
    assert (anna.may_push("cart", "ipv"), anna.may_push("cart", "news-1")) == (True, False)
    assert (anna.may_push("loans", "ipv"), anna.may_push("loans", "news-1")) == (False, True)


roles_of_tokens = st.dictionaries(
    st.sampled_from([*SCENARIOS, *map(group_key, GROUPS), ANY_SCENARIO]),
    st.sampled_from([Role.READER, Role.AUTHOR, Role.RELEASER]),
)
patterns = st.dictionaries(
    st.sampled_from([*SCENARIOS, *map(group_key, GROUPS), ANY_SCENARIO]), st.sampled_from([("a",), ("b",), ("a", "b")])
)


@given(roles_of_tokens, patterns, st.dictionaries(st.sampled_from(SCENARIOS), st.sampled_from(GROUPS)))
def test_unknown_groups_never_grant_more_than_any_groups_would(
    roles: dict[str, Role], branches: dict[str, tuple[str, ...]], groups: dict[str, str]
) -> None:
    known = person(roles, groups, branches=branches)
    unknown = Identity("anna", "0" * 64, roles, branches, groups=ScenarioGroups(is_known=False))
    readable = known.readable_scenarios()
    for scenario in SCENARIOS:
        assert unknown.role(scenario) <= known.role(scenario)
        assert (known.role(scenario) >= Role.READER) == (readable is None or scenario in readable)
        for branch in ("a", "b"):
            assert known.may_push(scenario, branch) or not unknown.may_push(scenario, branch)
    for scenario in unknown.readable_scenarios() or ():
        assert known.role(scenario) >= Role.READER


# --- the file ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    access = Access()
    access.issue("root", {"*": Role.ADMIN})
    access.save(tmp_path / "access.toml")
    return tmp_path / "groups.toml"


def test_a_move_is_one_change_that_every_gateway_sees_within_a_second(path: Path) -> None:
    clock = ManualClock()
    here, there = (AccessFile(path.with_name("access.toml"), clock=clock) for _ in range(2))
    token = here.add("anna", {"shop/*": Role.RELEASER}, made_by="root")
    asyncio.run(clock.advance(1))

    def roles(access: AccessFile) -> list[Role]:
        identity = access.identify(token)
        assert identity is not None
        return [identity.role(one) for one in ("cart", "search")]

    assert here.groups.put("cart", "shop") == ""
    assert here.groups.put("search", "bank") == ""
    assert roles(here) == [Role.RELEASER, Role.NONE]
    asyncio.run(clock.advance(1))
    assert roles(there) == [Role.RELEASER, Role.NONE]
    assert there.groups.put("search", "shop") == "bank"
    assert there.groups.put("cart", "bank") == "shop"
    asyncio.run(clock.advance(1))
    assert roles(here) == roles(there) == [Role.NONE, Role.RELEASER]
    with pytest.raises(NotInGroupError, match="'cart' is not in the group 'shop'"):
        here.groups.remove("cart", "shop")
    here.groups.remove("search", "shop")
    assert roles(here) == [Role.NONE, Role.NONE]
    assert load_groups(path).by_scenario == {"cart": "bank"}
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[groups", "is not TOML"),
        ("[group]\n", "unknown section [group]"),
        ("groups = 3\n", "must be a section"),
        ('[groups]\nshop = "cart"\n', "must be a list of scenarios"),
        ("[groups]\nshop = [3]\n", "'3' is not a scenario's name"),
        ('[groups]\n"a/b" = []\n', "a group's name is"),
        ('[groups]\nshop = ["../cart"]\n', "is not a scenario's name"),
        ('[groups]\nshop = ["cart"]\nbank = ["cart"]\n', "cart is in the groups shop and bank; one is allowed"),
    ],
)
def test_a_damaged_file_denies_and_says_where(path: Path, text: str, message: str) -> None:
    clock = ManualClock()
    access = AccessFile(path.with_name("access.toml"), clock=clock)
    token = access.add("anna", {"shop/*": Role.READER, "loans": Role.AUTHOR, "*": Role.RELEASER}, made_by="root")
    access.groups.put("cart", "shop")
    path.write_text(text)
    asyncio.run(clock.advance(1))
    anna = access.identify(token)
    assert anna is not None
    # `cart` is in the group, but the gateway cannot know that, nor that `search` is not: neither gets the role of `*`.
    assert [anna.role(one) for one in ("cart", "search", "loans")] == [Role.READER, Role.READER, Role.AUTHOR]
    assert not access.health()["ok"]
    assert message in access.health()["error"]
    with pytest.raises(ConfigError, match=r"groups\.toml"):
        access.groups.put("cart", "bank")
    assert path.read_text() == text, "what cannot be read is not replaced"
    path.write_text('[groups]\nshop = ["search"]\n')
    asyncio.run(clock.advance(1))
    anna = access.identify(token)
    assert anna is not None
    assert [anna.role(one) for one in ("cart", "search")] == [Role.RELEASER, Role.READER]
    assert access.health()["ok"]


def test_a_full_disk_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = GroupFile(path)
    groups.put("cart", "shop")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(scenario_groups, "write_file", full)
    with pytest.raises(DiskFullError):
        groups.put("cart", "bank")
    assert groups.current().group_of("cart") == load_groups(path).group_of("cart") == "shop"


def test_a_token_for_a_group_is_stored_and_a_wrong_one_refused(path: Path) -> None:
    access = AccessFile(path.with_name("access.toml"))
    access.add("anna", {"shop/*": Role.AUTHOR}, branches={"shop/*": ("ipv",)}, made_by="root")
    (anna,) = (one for one in access.identities() if one.name == "anna")
    assert (anna.roles, anna.branches) == ({"shop/*": Role.AUTHOR}, {"shop/*": ("ipv",)})
    for key in ("/*", "*/*", "a/b/*", "shop/**", "Shop/*"):
        with pytest.raises(ConfigError, match="GROUP"):
            access.add("bert", {key: Role.READER}, made_by="root")
    with pytest.raises(ConfigError, match="for the whole cloud"):
        access.add("bert", {"shop/*": Role.ADMIN}, made_by="root")


def test_a_backup_has_the_groups(tmp_path: Path) -> None:
    home = CloudHome(tmp_path / "cloud")
    home.prepare(("cart",))
    home.access.groups.put("cart", "shop")
    make_backup(home.folder, tmp_path / "backup", SystemClock())
    restore_backup(tmp_path / "backup", tmp_path / "restored", SystemClock())
    assert CloudHome(tmp_path / "restored").access.groups.current().by_scenario == {"cart": "shop"}


# --- a cloud that runs ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    folder = tmp_path_factory.mktemp("groups")
    options = ("--http-port=0", "--tunnel-port=0", "--plain-http", "--scenario=cart", "--scenario=loans", "--json")
    with Programs() as start:
        program = start("cloud", "up", str(folder), *options)
        yield folder, program.wait_for(lambda line: "url" in line)["url"]


def test_a_team_pushes_releases_and_lists_in_its_group_until_the_scenario_leaves(
    tmp_path: Path, cloud: tuple[Path, str]
) -> None:
    folder, url = cloud
    admin = Person(tmp_path / "admin", url)
    admin.json("login", url, "--token-file", str(folder / "admin.token"))
    token = admin.json("token", "add", "anna", "--group", "shop=releaser")["token"]
    assert "shop/*=releaser" in admin.run("token", "list").stdout
    anna = Person(tmp_path / "anna", url)
    anna.json("login", url, say=f"{token}\n")
    assert anna.json("group", "list") == []

    assert admin.json("group", "add", "shop", "cart") == [{"group": "shop", "scenario": "cart", "was": ""}]
    (listed,) = anna.json("group", "list")
    assert listed == {"group": "shop", "scenario": "cart", "role": "releaser", "git": f"{url}/git/shop/cart.git"}
    for words in (["add", "shop", "loans"], ["remove", "shop", "cart"]):
        with pytest.raises(CloudRefusedError, match="does not have the role admin"):
            anna.run("group", *words)
    with pytest.raises(CloudRefusedError, match="does not exist"):
        admin.run("group", "add", "shop", "nothing")
    with pytest.raises(CloudRefusedError, match="cannot name a group"):
        admin.run("group", "add", "Shop", "cart")

    def remote(path: str) -> str:
        return address(url, token, path)

    work = tmp_path / "work"
    git(tmp_path, "clone", "-q", remote("shop/cart"), str(work))
    git(work, "checkout", "-q", "-b", "ipv")
    for name, data in {**FILES, "task.toml": CONFIG}.items():
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_bytes(data)
    git(work, "add", "-A")
    git(work, "commit", "-q", "-m", "v1")
    git(work, "tag", "ipv/v1")
    git(work, "push", "-q", remote("shop/cart"), "ipv", "ipv/v1")
    assert "refs/tags/ipv/v1" in git(work, "ls-remote", remote("cart")).stdout, "one repository, two addresses"

    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, trust_env=False) as http:
        release = {"scenario": "cart", "task": "ipv", "version": "v1", "start": False}
        made = http.post("/v1/releases", json=release)
        assert made.status_code == 201, made.text
        assert [one["id"] for one in anna.json("release", "status", "--group", "shop")] == [made.json()["id"]]
        assert admin.json("release", "status", "--group", "bank") == []
        assert http.get("/v1/devices", params={"group": "shop"}).json()["total"] == 0
        assert http.get("/v1/features", params={"group": "shop"}).status_code == 200
        batch = {"operation": "download", "transfers": ["basic"], "objects": [{"oid": "0" * 64, "size": 1}]}
        basic = ("anna", token)
        lfs = http.post("/git/shop/cart.git/info/lfs/objects/batch", json=batch, auth=basic)
        assert (lfs.status_code, lfs.json()["objects"][0]["error"]["code"]) == (200, 404)
        assert http.post("/git/bank/cart.git/info/lfs/objects/batch", json=batch, auth=basic).status_code == 404

        wrong = git(work, "ls-remote", remote("bank/cart"), check=False)
        assert "scenario 'cart' is not in the group 'bank'" in wrong.stderr
        hidden = git(work, "ls-remote", remote("bank/loans"), check=False)
        assert "needs the role reader" in hidden.stderr, "who may not read it is not told its group"

        (moved,) = admin.json("group", "add", "bank", "cart")
        assert moved["was"] == "shop"
        assert anna.json("group", "list") == []
        assert http.get(f"/v1/releases/{made.json()['id']}").status_code == 404
        refused = git(work, "push", remote("shop/cart"), "ipv:more", check=False)
        assert "needs the role author" in refused.stderr
    admin.json("group", "remove", "bank", "cart")
    with pytest.raises(CloudRefusedError, match="'cart' is not in the group 'bank'"):
        admin.run("group", "remove", "bank", "cart")
    said = admin.run("audit", "show", "--json").stdout
    assert (said.count('"group.add"'), said.count('"group.remove"')) == (2, 1), said


def test_a_damaged_file_is_reported_over_http_and_closes_the_group(tmp_path: Path, cloud: tuple[Path, str]) -> None:
    folder, url = cloud
    admin = Person(tmp_path / "admin", url)
    admin.json("login", url, "--token-file", str(folder / "admin.token"))
    token = admin.json("token", "add", "carl", "--group", "bank=reader")["token"]
    admin.json("group", "add", "bank", "loans")
    assert git(tmp_path, "ls-remote", address(url, token, "bank/loans"), check=False).returncode == 0
    records = admin.run("audit", "show", "--json").stdout.count('"group.')
    (folder / "groups.toml").write_text("[groups\n")
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, trust_env=False) as http:
        end_s = time.monotonic() + 60
        while http.get("/v1/groups").status_code != 503:
            assert time.monotonic() < end_s
        boss = {"Authorization": f"Bearer {(folder / 'admin.token').read_text().strip()}"}
        for method in ("PUT", "DELETE"):
            refused = http.request(method, "/v1/groups/bank/loans", headers=boss)
            assert (refused.status_code, "file of groups cannot be read" in refused.text) == (503, True), refused.text
        assert (
            admin.run("audit", "show", "--json").stdout.count('"group.') == records
        )  # what cannot be done leaves none
        assert not http.get("/healthz").json()["ok"]
    assert "needs the role reader" in git(tmp_path, "ls-remote", address(url, token, "loans"), check=False).stderr
    (folder / "groups.toml").unlink()
