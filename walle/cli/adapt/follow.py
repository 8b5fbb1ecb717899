"""`walle adapt follow`: goals that devices ask for become models and releases, while they run on (Mistify §6)."""

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from walle.base.durable_file import write_file
from walle.cli.adapt.options import File, Folder, Goals, Method, Out
from walle.cli.adapt.release import AdaptedRelease, ReleaseUnderWayError
from walle.cli.cloud_call import call_cloud
from walle.cli.credentials import TokenOption, UrlOption
from walle.cli.output import JsonLinesFlag, emit, emit_line, interruptible
from walle.client.cloud_client import CloudUnreachableError
from walle.client.release_client import ReleaseClient
from walle.errors import ConfigError
from walle.protocol import MAX_VARIANTS, MODEL_GOAL, printable

if TYPE_CHECKING:
    from walle.adapt.adaptation import Outcome
    from walle.adapt.costs.formula import Costs
    from walle.adapt.goals.config import Adaptation
    from walle.adapt.goals.goal import Goal

_RECORD = "asked-goals.json"
_WEEK_S = 7 * 86_400.0


def follow(
    goals: Goals,
    release: Annotated[
        tuple[str, str], typer.Option("--release", metavar="SCENARIO TASK", help="The task whose devices ask.")
    ],
    url: UrlOption,
    out: Out = Path("adapted"),
    attribute: Annotated[str, typer.Option(help="The attribute in which devices ask for goals.")] = MODEL_GOAL,
    least: Annotated[int, typer.Option(min=1, help="Devices that must ask for a goal before a model is made.")] = 5,
    method: Annotated[Method, typer.Option(help="As in `walle adapt run`.")] = Method.TREE,
    every: Annotated[float, typer.Option(min=1.0, help="Seconds between two looks.")] = 60.0,
    once: Annotated[bool, typer.Option("--once", help="Look once.")] = False,
    folder: Folder = Path(),
    file: File = "",
    token: TokenOption = "",
    as_json: JsonLinesFlag = False,
) -> None:
    """Adapt the model to goals that devices ask for, each from the nearest looser goal that is done, and release it.

    Devices ask by `Device.ask_for_model`. Those that asked in the last week count. All goals of the file and those
    asked for are variants of one version, of which at most eight have rules; a goal that no device asks for any more
    makes room for another. Goals that cannot be met are named and left out. The folder of models has what is done:
    after Ctrl-C the same command goes on.
    """
    from walle.adapt.goals.config import read_config

    jobs = read_config(goals)
    if len(jobs) > 1:
        raise typer.BadParameter("has several adaptations, and a release is of one", param_hint="GOALS")

    def values_of(client: ReleaseClient) -> Any:
        return client.attribute_values(attribute, "/".join(release), _WEEK_S)

    def release_of(asked: "tuple[Goal, ...]") -> AdaptedRelease:
        return AdaptedRelease(*release, folder, file, asked, url=url, token=token)

    follower = _Follower(jobs[0], out, method, attribute, as_json=as_json)
    with interruptible("following; the same command continues"):
        while True:
            try:
                counts: dict[str, int] = call_cloud(ReleaseClient, url, token, values_of)
                follower.look(counts, least, release_of)
            except CloudUnreachableError as error:
                if once:
                    raise
                follower.say(f"{error}; it is asked again", error=str(error))
            if once:
                return
            asyncio.run(asyncio.sleep(every))


class _Follower:
    """Goals that devices ask for, and those of them that the latest release has: what differs is to be done."""

    def __init__(self, job: "Adaptation", out: Path, method: Method, attribute: str, *, as_json: bool) -> None:
        self._job, self._out, self._method = job, out, method
        self._attribute = attribute
        self._as_json = as_json
        self._left_out: set[str] = set()  # texts that were named once
        self._released = _read_released(out / _RECORD)

    def look(self, counts: dict[str, int], least: int, release_of: Any) -> None:
        """Make and release models for what devices ask now: `counts` has their number by the text of the goal."""
        wanted = self._wanted(counts, least)
        if wanted == self._released:
            return
        try:
            release_of(self._goals(wanted))  # what cannot be released is refused before anything is trained
        except ReleaseUnderWayError as error:
            self.say(f"{error.release_id} is under way; new goals wait for it", waits_for=error.release_id)
            return
        met, whole = list(self._released), None
        for text in wanted:
            if text not in met:
                whole = whole or self._adapted(self._job.goals).whole
                if self._is_met(text, [*met, text], whole):
                    met.append(text)
        met = [text for text in wanted if text in met]
        if met == self._released:
            return
        goals = self._goals(met)
        started = release_of(goals).start(self._adapted(goals), self._out)
        self._released = met
        self._out.mkdir(parents=True, exist_ok=True)
        write_file(self._out / _RECORD, json.dumps({"released": met}) + "\n", mode=0o644)
        self.say(f"{started['id']} has models for {', '.join(met) or 'the goals of the file'}", release=started["id"])

    def _wanted(self, counts: dict[str, int], least: int) -> list[str]:
        """Return the texts of goals that have or get a model: those released before first, as many as there is room."""
        new = [text for text, devices in counts.items() if devices >= least and text not in self._released]
        wanted = [text for text in self._released if counts.get(text)] + [text for text in new if self._is_known(text)]
        room = MAX_VARIANTS - len([goal for goal in self._job.goals if goal.rule])
        if without := wanted[room:]:
            self.say(f"{len(without)} goals find no room among {MAX_VARIANTS} variants", without_room=without)
        return wanted[:room]

    def _is_known(self, text: str) -> bool:
        try:
            self._goals([text])
        except ConfigError as error:
            self._leave_out(text, str(error))
        return text not in self._left_out

    def _goals(self, texts: list[str]) -> "tuple[Goal, ...]":
        """Return the goals that devices asked for, which go before those of the file."""
        from walle.adapt.goals.asked import asked_goal

        return (*(asked_goal(text, self._attribute) for text in texts), *self._job.goals)

    def _adapted(self, goals: "tuple[Goal, ...]") -> "Outcome":
        from walle import adapt

        (outcome,) = adapt.run(dataclasses.replace(self._job, goals=goals), self._out, method=self._method, resume=True)
        return outcome

    def _is_met(self, text: str, texts: list[str], whole: "Costs") -> bool:
        """Adapt the model to one more goal; where that cannot be met, say so, and leave it out from now on."""
        from walle.adapt.collective.checks import UnmetGoalError

        goal = self._goals([text])[0]
        if goal.is_met_by(whole):
            return self._leave_out(text, "the given model meets it")
        try:
            outcome = self._adapted(self._goals(texts))
        except UnmetGoalError as error:
            return self._leave_out(text, str(error))
        fitted = next(one for one in outcome.fitted if one.goal == goal.name)
        if not fitted.meets_budgets:
            return self._leave_out(text, "no model that was found is within its budgets")
        self.say(f"{text}: accuracy {fitted.costs['accuracy']:.4f}", goal=text, model=fitted.file)
        return True

    def _leave_out(self, text: str, why: str) -> bool:
        if text not in self._left_out:
            self._left_out.add(text)
            self.say(f"{text!r} is left out: {why}", goal=text, left_out=why)
        return False

    def say(self, text: str, **fields: Any) -> None:
        if self._as_json:
            emit_line(fields)
        else:
            emit(None, as_json=False, text=escape(printable(text)))


def _read_released(path: Path) -> list[str]:
    """Return the texts of the goals that the latest release has. Raises ConfigError where the record is broken."""
    try:
        released = json.loads(path.read_text())["released"]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} cannot be read ({error}); remove it, and all goals are released again") from error
    return [str(text) for text in released]
