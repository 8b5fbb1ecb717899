"""Release of adapted models: the next version of a task, whose variants are the models of the goals."""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from walle.cli.cloud_call import call_cloud
from walle.cli.task.folder import TaskFolderError
from walle.cli.task.push import Checkout
from walle.cli.task.variants import NewVariant, write_variants
from walle.client.release_client import ReleaseClient, ReleaseJson
from walle.errors import ConfigError
from walle.protocol import MAX_VARIANTS, VARIANT_NAME_RULE, is_variant_name

if TYPE_CHECKING:
    from walle.adapt.adaptation import Outcome
    from walle.adapt.goals.goal import Goal

_WEEK_S = 7 * 86_400.0
_EVERY_DEVICE = {"app_version": ""}  # policy of the releases that this module starts
_UNDER_WAY = ("created", "simulating", "beta", "gray", "paused")


class ReleaseUnderWayError(ConfigError):
    """A release of the task to the same devices is not over. `release_id` is its id."""

    def __init__(self, release_id: str) -> None:
        super().__init__(f"{release_id} is under way; wait for its end, or roll it back")
        self.release_id = release_id


class AdaptedRelease:
    """The release of one adaptation to the devices of its goals, by their rules.

    The goal without a rule, if there is one, is the model of all other devices. Everything that can be refused is
    refused here, before anything is trained.

    Raises:
        ConfigError: a goal cannot be released, or the folder is not a checkout of the task.
        CloudRefusedError: the cloud refuses a rule.
    """

    def __init__(
        self, scenario: str, task: str, folder: Path, file: str, goals: Sequence["Goal"], *, url: str, token: str
    ) -> None:
        if not url:
            raise typer.BadParameter("name the cloud with --url or WALLE_URL", param_hint="--url")
        self._scenario, self._task, self._folder = scenario, task, folder
        self._goals = goals
        self._url, self._token = url, token
        self._file = _file_of(folder, task, file)
        self._checkout = Checkout(folder, task)
        _check_goals(goals)
        rules = [goal.rule for goal in goals if goal.rule]

        async def check(client: ReleaseClient) -> None:
            for one in await client.list_all():
                request = one["request"]
                is_same = (request["scenario"], request["task"], request["policy"]) == (scenario, task, _EVERY_DEVICE)
                if is_same and one["state"] in _UNDER_WAY:
                    raise ReleaseUnderWayError(one["id"])
            for rule in rules:
                await client.preview(scenario, task, rule=rule, app_version="", seen_within_s=_WEEK_S)

        call_cloud(ReleaseClient, url, token, check)

    def start(self, outcome: "Outcome", out: Path) -> ReleaseJson:
        """Push the models as the task's next version, and start its release.

        Raises:
            ConfigError: a model misses its goal, or git refuses; the models stay in `out`.
        """
        missed = [one.goal for one in outcome.fitted if not (one.meets_budgets and one.meets_accuracy)]
        if missed:
            raise ConfigError(f"not released: {', '.join(missed)} missed; their models are in {out}")
        files = {one.goal: (out / one.file).read_bytes() for one in outcome.fitted}
        variants = [NewVariant(goal.name, goal.rule, files[goal.name]) for goal in self._goals if goal.rule]
        own = next((files[goal.name] for goal in self._goals if not goal.rule), None)
        version = self._checkout.push(
            lambda folder: write_variants(folder, self._file, own, variants),
            f"{self._task}: {len(files)} adapted models",
        )
        return call_cloud(
            ReleaseClient, self._url, self._token, lambda client: client.create(self._scenario, self._task, version)
        )


def _check_goals(goals: Sequence["Goal"]) -> None:
    rules: dict[str, str] = {}
    for goal in goals:
        if goal.rule in rules:
            which = f"the rule {goal.rule!r}" if goal.rule else "no rule"
            raise ConfigError(
                f"goals {rules[goal.rule]} and {goal.name} have {which}: devices would get only the first"
            )
        rules[goal.rule] = goal.name
        if goal.rule and not is_variant_name(goal.name):
            raise ConfigError(f"goal {goal.name} cannot be released: a variant's name is {VARIANT_NAME_RULE}")
    if len([rule for rule in rules if rule]) > MAX_VARIANTS:
        raise ConfigError(
            f"{len(rules)} goals cannot be released as one version: it has at most {MAX_VARIANTS} variants"
        )


def _file_of(folder: Path, task: str, file: str) -> str:
    """Return the file of the task that the models replace: the one that is named, else its only model."""
    try:
        config = tomllib.loads((folder / "task.toml").read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise TaskFolderError(folder, f"has no task.toml that can be read ({error}); give --folder") from error
    if (name := _table(config, "task").get("name")) != task:
        raise TaskFolderError(folder, f"is the task {name!r}, not {task!r}")
    shared = [path for path, route in _table(config, "files").items() if route == "shared"]
    found = [path for path in shared if path == file or (not file and path.endswith(".walle"))]
    if len(found) != 1:
        what = f"lists no shared file {file}" if file else f"lists {len(found)} shared models: name one with --file"
        raise TaskFolderError(folder / "task.toml", what)
    return found[0]


def _table(config: Mapping[str, object], name: str) -> Mapping[str, object]:
    found = config.get(name)
    return found if isinstance(found, Mapping) else {}
