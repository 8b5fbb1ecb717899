"""`walle release` against a cloud that runs: what it sends, what it shows, and how it fails."""

import asyncio
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from tests.sim.engineer import Engineer
from tests.sim.program import Programs
from walle.cli import app
from walle.cli.release.commands import progress_of
from walle.cli.release.targeting import explanation_lines
from walle.client.cloud_client import CloudRefusedError, CloudUnreachableError
from walle.client.release_client import (
    ExplainedReleaseJson,
    ExplainedTaskJson,
    ExplanationJson,
    ReleaseClient,
    ReleaseJson,
    TermJson,
)

CONFIG = '[task]\nname = "{task}"\n[trigger]\nsequence = ["page_exit"]\n'
WORKS = {"main.py": "def execute(ctx, trigger):\n    return 1\n"}
FAILS = {"main.py": "raise ValueError('it does not load')\n"}


CRASHES = {
    "main.py": (
        "def execute(ctx, trigger):\n    ctx.log(f'on {ctx.device[\"os\"]}')\n"
        "    return trigger['event']['contents']['n']\n"
    ),
    "simulation/events.jsonl": "".join(
        json.dumps({"event_id": event_id, "page_id": "item/7", "ts_ms": 5, "contents": {"of": "item"}}) + "\n"
        for event_id in ("page_enter", "page_exit")
    ),
}
SIMULATION = '[simulation]\nevents = "simulation/events.jsonl"\n'


class Person:
    """Runs commands with the address of the cloud in the environment, as a shell does."""

    def __init__(self, url: str, token: str, folder: Path = Path()) -> None:
        self.folder = folder  # folder of the cloud
        self.environment = {"WALLE_URL": url, "WALLE_TOKEN": token}

    def text(self, *arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["release", *arguments], env=self.environment, catch_exceptions=False)
        return result.exit_code, result.stdout

    def json(self, *arguments: str) -> Any:
        status, text = self.text(*arguments, "--json")
        assert status == 0, text
        return json.loads(text)


@pytest.fixture(scope="module")
def person(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    """A person who may release in a cloud that has the tasks good and bad."""
    folder = tmp_path_factory.mktemp("release")
    with Programs() as start:
        cloud = start(
            "cloud",
            "up",
            str(folder / "cloud"),
            "--http-port=0",
            "--tunnel-port=0",
            "--plain-http",
            "--scenario=shop",
            "--json",
        )
        url = cloud.wait_for(lambda line: "url" in line)["url"]
        token = (folder / "cloud" / "admin.token").read_text().strip()
        engineer = Engineer(folder, url, "shop", token)
        engineer.push("good", "v1", WORKS | {"task.toml": CONFIG.format(task="good")})
        engineer.push("bad", "v1", FAILS | {"task.toml": CONFIG.format(task="bad")})
        engineer.push("crash", "v1", CRASHES | {"task.toml": CONFIG.format(task="crash") + SIMULATION})
        reading = CONFIG.format(task="reading") + '[reads]\ntopics = ["good", "good/clicks"]\n'
        engineer.push("reading", "v1", WORKS | {"task.toml": reading})
        yield Person(url, token, folder / "cloud")


async def _beta_devices(person: Person, release_id: str) -> list[str]:
    async with ReleaseClient(*person.environment.values()) as client:
        async for release in client.stream(release_id):
            if release["state"] == "beta":
                return release["beta_devices"]
    raise AssertionError


def test_a_release_is_started_watched_paused_resumed_and_rolled_back(person: Person) -> None:
    options = ["--beta-device=a", "--beta-device=b", "--step=0.1", "--step=1", "--app-version=>=10", "--gate=alpha=0.2"]
    release = person.json("start", "shop", "good", "v1", *options)
    name = release["id"]
    request = release["request"]
    assert (request["beta"], request["steps"]) == (["a", "b"], [0.1, 1.0])
    assert (request["policy"], request["gate"]["alpha"]) == ({"app_version": ">=10"}, 0.2)
    assert request["gate"]["beta"] != 0.2  # what is not given is the cloud's choice
    assert asyncio.run(_beta_devices(person, name)) == ["a", "b"]
    with pytest.raises(CloudRefusedError, match=f"{name} of shop/good is under way"):
        person.json("start", "shop", "good", "v1", "--app-version=>=10")

    assert person.json("pause", name)["state"] == "paused"
    assert [one["id"] for one in person.json("status")] == [name]
    assert "paused" in person.text("status")[1]
    with pytest.raises(CloudRefusedError, match="is already paused; it can be resumed or rolled back"):
        person.text("pause", name)
    assert person.json("resume", name)["resumes"] is None
    status, text = person.text("rollback", name, "--reason", "not [/wanted]")
    assert (status, text) == (0, f"{name} is rolled back\n")

    shown = person.json("status", name)
    assert shown["reason"] == "by admin: not [/wanted]"
    with pytest.raises(CloudRefusedError, match="is already rolled back; start a new release, or the same one again"):
        person.text("pause", name)
    assert [entry["event"] for entry in shown["history"]][-3:] == ["Pause", "Resume", "Rollback"]
    text = person.text("status", name)[1]
    assert "reason: by admin: not [/wanted]" in text
    assert "\ncreated by admin\n" in text
    assert "Created by admin" in text
    (line,) = [line for line in text.splitlines() if "Rolled back by admin" in line]  # a pipe gets whole lines
    assert line.rstrip().endswith(" reason not [/wanted]")
    (line,) = [line for line in person.text("status")[1].splitlines() if name in line]
    assert ("shop/good" in line, "rolled back" in line) == (True, True)

    again = person.json("retry", name)
    assert (again["retries"], again["request"]) == (name, shown["request"])
    assert f"another attempt of {name}" in person.text("status", again["id"])[1]
    with pytest.raises(CloudRefusedError, match="cannot be tried again; it can be "):
        person.text("retry", again["id"])
    person.json("rollback", again["id"])

    assert person.json("retire", "shop", "--keep-versions=2", "--dry-run") == {"dry_run": True, "releases": []}
    assert person.text("retire", "shop", "--task=good") == (0, "0 releases retired\n")


def test_a_release_shows_what_its_version_reads_of_other_tasks(person: Person) -> None:
    line = "reads topics of other tasks: shop/good, shop/good/clicks"
    status, text = person.text("start", "shop", "reading", "v1", "--beta-device=a")
    assert (status, line in text.replace("\n", " ")) == (0, True), text
    (name,) = [one["id"] for one in person.json("status") if one["id"].startswith("reading")]
    assert person.json("status", name)["reads"] == ["shop/good", "shop/good/clicks"]
    assert line in person.text("status", name)[1].replace("\n", " ")
    person.json("rollback", name)
    assert person.json("start", "shop", "good", "v1", "--beta-device=a")["reads"] == []
    person.json("rollback", person.json("status")[0]["id"])


def test_a_wrong_option_of_the_gate_is_refused_before_anything_is_sent() -> None:
    command = ["release", "start", "shop", "good", "v1", "--url=https://127.0.0.1:1"]
    for option, hint in (("hold=1", "did you mean hold_s?"), ("p_bad=2", "gate.p_bad: 2 is not a number above 0")):
        result = CliRunner().invoke(app, [*command, f"--gate={option}"], env={"COLUMNS": "200"})
        assert (result.exit_code, hint in result.output) == (2, True), result.output


def test_a_rule_is_previewed_and_a_device_is_explained(person: Person) -> None:
    with pytest.raises(CloudRefusedError, match=r"column 1: 'os' is not a declared attribute"):
        person.text("preview", "shop", "os == 'android'")
    attributes = person.folder / "attributes.toml"
    attributes.write_text('[attributes]\nos = "string"\n')  # read when it is needed
    shown = person.json("preview", "shop", "os == 'android'", "--app-version", ">=10")
    assert (shown["kind"], shown["seen"], shown["meets"]) == ("customised", 0, [])
    assert shown["policy"] == {"app_version": ">=10", "rule": "os == 'android'", "columns": {"os": "string"}}
    assert "0 of 0 devices; the policy is customised" in person.text("preview", "shop", "os == 'android'")[1]
    with pytest.raises(CloudRefusedError, match="device 'phone-7' is unknown"):
        person.text("explain", "--device", "phone-7")

    options = ["--rule=os == 'android'", "--only-device=a", "--only-device=b", "--beta-device=a"]
    release = person.json("start", "shop", "good", "v1", *options)
    assert release["request"]["policy"]["devices"] == ["a", "b"]
    beside = person.json("start", "shop", "good", "v1", "--beta-device=a")  # for other devices
    for one in (release, beside):
        person.json("rollback", one["id"])


def test_a_table_of_attributes_is_put_listed_and_removed(person: Person) -> None:
    def run(*arguments: str) -> str:
        done = CliRunner().invoke(app, ["attributes", *arguments], env=person.environment, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout.replace("\n", " ")

    declared = '[attributes]\nuser = "string"\nos = "string"\n[uploaded]\ngroup = "string"\nage = "int"\n'
    (person.folder / "attributes.toml").write_text(declared)
    table = person.folder.parent / "groups.csv"
    table.write_text("user,group,age\nanna,gold,30\nbert,,\n")
    put = run("put", f"--file={table}", "--key=user")
    assert "2 rows by user, group (string), age (int): " in put
    listed = run("list")
    assert "user" in listed
    assert "may be uploaded: group (string), age (int); by: device_id, user, os" in listed
    shown = json.loads(run("list", "--json"))
    assert [(one["key"], one["rows"], one["put_by"]) for one in shown["tables"]] == [("user", 2, "admin")]
    assert person.json("preview", "shop", "uploaded.group == 'gold'")["policy"]["columns"] == {
        "uploaded.group": "string"
    }
    rows = table.with_suffix(".jsonl")
    rows.write_text('{"group": "gold"}\n')
    with pytest.raises(CloudRefusedError, match=r"line 1: device_id must be a text"):
        run("put", f"--file={rows}")
    assert "the table by user is removed" in run("remove", "user")
    with pytest.raises(CloudRefusedError, match="a table by 'user' does not exist"):
        run("remove", "user")


def test_an_explanation_is_shown_in_lines() -> None:
    term: TermJson = {"term": "os == 'a'", "holds": False, "device": "it says no os, so that the term is unknown"}
    release: ExplainedReleaseJson = {
        "release": "good-v2-2",
        "version": "v2",
        "stage": "full",
        "kind": "customised",
        "terms": [term],
        "applies": False,
        "result": "not for this device",
    }
    task: ExplainedTaskJson = {
        "task": "shop/good",
        "has": "v1",
        "gets": "",
        "because": "no release is for it",
        "releases": [release],
    }
    found: ExplanationJson = {"device_id": "d", "app_version": "", "last_seen_s": 1.0, "tasks": [task]}
    assert explanation_lines(found) == [
        "d, app version unknown",
        "",
        "shop/good: has v1, gets nothing: no release is for it",
        "  1. good-v2-2 (v2, full, customised)",
        "       no   os == 'a'  (it says no os, so that the term is unknown)",
        "       not for this device",
    ]
    assert explanation_lines({**found, "tasks": []})[1:] == ["no task has a release"]


def test_watching_a_release_that_fails_ends_with_status_1(person: Person) -> None:
    status, text = person.text("start", "shop", "bad", "v1", "--watch", "--json")
    lines = [json.loads(line) for line in text.splitlines()]
    assert (status, lines[-1]["state"]) == (1, "failed")
    assert "it does not load" in lines[-1]["reason"]
    status, text = person.text("start", "shop", "bad", "v1", "--watch")
    assert status == 1
    assert "it does not load" in text.splitlines()[-1]


def test_a_failed_simulation_shows_its_device_its_event_and_the_source_line(person: Person) -> None:
    status, text = person.text("start", "shop", "crash", "v1", "--watch", "--json")
    assert (status, json.loads(text.splitlines()[-1])["state"]) == (1, "failed")
    name = json.loads(text.splitlines()[-1])["id"]
    shown = person.text("status", name)[1].splitlines()
    begin = shown.index("failed: KeyError: 'n' (2 times)")
    assert shown[begin + 1 : begin + 9] == [
        "  at main.py:3 in execute: return trigger['event']['contents']['n']",
        '  first at event 1, line 2 of simulation/events.jsonl: page_exit item/7, ts_ms 5, contents {"of": "item"}',
        "  on simulated-low (app_version 1.0, os android, performance low); also on simulated-high",
        "  Traceback (most recent call last):",
        '    File "main.py", line 3, in execute',
        "      return trigger['event']['contents']['n']",
        "  KeyError: 'n'",
        "  logged: info: on android",
    ]
    (fault,) = person.json("status", name)["history"][-1]["details"]["faults"]
    assert (fault["count"], fault["device"]["os"], fault["event"]["page_id"]) == (2, "android", "item/7")
    assert "traceback" not in "".join(line for line in shown if line.lstrip().startswith("SimulationFailed"))


def test_a_refusal_by_the_cloud_is_shown_with_the_remedy(person: Person) -> None:
    with pytest.raises(CloudRefusedError, match="release 'none' does not exist"):
        person.text("status", "none")
    with pytest.raises(CloudRefusedError, match="v9"):
        person.text("start", "shop", "good", "v9")
    with pytest.raises(CloudRefusedError, match=r"steps.*must grow"):
        person.text("start", "shop", "good", "v1", "--step=0.5", "--step=0.2")
    stranger = Person(person.environment["WALLE_URL"], "wrong")
    with pytest.raises(CloudRefusedError, match=r"log in with: walle login URL; .*admin\.token") as caught:
        stranger.text("start", "shop", "good", "v1")
    assert caught.value.status == 401


def test_a_missing_cloud_is_reported_with_its_address() -> None:
    with pytest.raises(CloudUnreachableError, match=r"http://127\.0\.0\.1:1 .*walle cloud up"):
        Person("http://127.0.0.1:1", "").text("status")


def test_another_server_is_reported_as_not_a_cloud(tmp_path: Path) -> None:
    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            with pytest.raises(CloudRefusedError, match=r"404 .*address of a Walle cloud"):
                Person(f"http://127.0.0.1:{server.server_port}", "").text("status")
        finally:
            server.shutdown()


def test_wrong_uses_end_with_status_2() -> None:
    nowhere = Person("http://127.0.0.1:1", "")
    start = ["start", "shop", "good", "v1"]
    for wrong in (["--beta=1", "--beta-device=a"], ["--beta=-1"], ["--url", "ftp://x"], ["--url", "x"]):
        assert nowhere.text(*start, *wrong)[0] == 2, wrong
    assert CliRunner().invoke(app, ["release", *start], env={"WALLE_URL": None}).exit_code == 2


@pytest.mark.parametrize(
    ("state", "step", "resumes", "progress"),
    [
        ("created", 0, None, 0.0),
        ("simulating", 0, None, 0.0),
        ("beta", 0, None, 0.25),
        ("gray", 0, None, 0.5),
        ("gray", 1, None, 0.75),
        ("paused", 1, "gray", 0.75),
        ("full", 1, None, 1.0),
        ("failed", 0, None, 1.0),
    ],
)
def test_progress_grows_with_the_stages(state: str, step: int, resumes: str | None, progress: float) -> None:
    release = {"state": state, "step": step, "resumes": resumes, "request": {"steps": [0.5, 1.0]}}
    assert progress_of(cast("ReleaseJson", release)) == progress
