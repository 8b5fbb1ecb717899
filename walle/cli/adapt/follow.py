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
from walle.cli.cloud_call import call_cloud
from walle.cli.credentials import TokenOption, UrlOption
from walle.cli.output import JsonLinesFlag, emit, emit_line, interruptible
from walle.client.release_client import ReleaseClient
from walle.errors import ConfigError
from walle.protocol import MAX_VARIANTS, printable

if TYPE_CHECKING:
    from walle.adapt.goals.config import Adaptation
    from walle.adapt.goals.goal import Goal

_RECORD = "asked-goals.json"
_WEEK_S = 7 * 86_400.0
_UNDER_WAY = ("created", "simulating", "beta", "gray", "paused")


def follow(
    goals: Goals,
    release: Annotated[
        tuple[str, str],
        typer.Option("--release", metavar="SCENARIO TASK", help="The task whose devices ask for goals."),
    ],
    url: UrlOption,
    out: Out = Path("adapted"),
    attribute: Annotated[str, typer.Option(help="The attribute in which devices ask for goals.")] = "model_goal",
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

    Devices ask by `Device.ask_for_model`. All goals of the file and those asked for are variants of one version, of
    which at most eight have rules. Goals that cannot be met are named and left out. The folder of models has what is
    done: after Ctrl-C the same command goes on.
    """
    from walle.adapt.goals.config import read_config

    jobs = read_config(goals)
    if len(jobs) > 1:
        raise typer.BadParameter("has several adaptations, and a release is of one", param_hint="GOALS")
    follower = _Follower(jobs[0], out, release, attribute, least, method, folder, file, url, token, as_json=as_json)
    with interruptible("following; the same command goes on"):
        while True:
            follower.look()
            if once:
                return
            asyncio.run(asyncio.sleep(every))


class _Follower:
    """What was asked for so far: texts of goals that are followed, and those that cannot be met, with the reason."""

    def __init__(
        self,
        job: "Adaptation",
        out: Path,
        release: tuple[str, str],
        attribute: str,
        least: int,
        method: Method,
        folder: Path,
        file: str,
        url: str,
        token: str,
        *,
        as_json: bool,
    ) -> None:
        self._job, self._out, self._method = job, out, method
        self._scenario, self._task = release
        self._attribute, self._least = attribute, least
        self._folder, self._file = folder, file
        self._url, self._token, self._as_json = url, token, as_json
        self._asked: list[str] = []
        self._refused: dict[str, str] = {}
        if (out / _RECORD).exists():
            record = json.loads((out / _RECORD).read_text())
            self._asked, self._refused = record["asked"], record["refused"]

    def look(self) -> None:
        """Take the new goals of devices, one after the other, then release all of them together."""
        new = [text for text in self._wanted() if text not in self._asked and text not in self._refused]
        room = MAX_VARIANTS - len(self._asked) - len([goal for goal in self._job.goals if goal.rule])
        if len(new) > room:
            self._say(f"{len(new) - room} more goals find no room among {MAX_VARIANTS} variants", waiting=new[room:])
        new = new[: max(0, room)]
        if not new or self._is_busy():
            return
        self._release_of(self._goals(self._asked))  # what cannot be released is refused before anything is trained
        done = [text for text in new if self._is_adapted(text)]
        if done:
            self._release(done)

    def _wanted(self) -> list[str]:
        name = f"{self._scenario}/{self._task}"

        async def ask(client: ReleaseClient) -> dict[str, int]:
            return await client.attribute_values(self._attribute, name, _WEEK_S)

        counts = call_cloud(ReleaseClient, self._url, self._token, ask)
        return [text for text, devices in counts.items() if devices >= self._least and text]

    def _is_busy(self) -> bool:
        releases = call_cloud(ReleaseClient, self._url, self._token, lambda client: client.list_all())
        name = self._scenario, self._task
        mine = [one for one in releases if (one["request"]["scenario"], one["request"]["task"]) == name]
        busy = next((one["id"] for one in mine if one["state"] in _UNDER_WAY), "")
        if busy:
            self._say(f"{busy} is under way; new goals wait for it", waits_for=busy)
        return bool(busy)

    def _goals(self, texts: list[str]) -> "tuple[Goal, ...]":
        """Return the goals that devices asked for, which go before those of the file."""
        from walle.adapt.goals.asked import asked_goal

        return (*(asked_goal(text, self._attribute) for text in texts), *self._job.goals)

    def _is_adapted(self, text: str) -> bool:
        """Adapt the model to one more goal; where it cannot be met, say so, and do not try it again."""
        from walle import adapt

        try:
            goals = self._goals([*self._asked, text])
            job = dataclasses.replace(self._job, goals=goals)
            (outcome,) = adapt.run(job, self._out, method=self._method, resume=True)
        except ConfigError as error:
            return self._leave_out(text, str(error))
        name = goals[len(self._asked)].name
        fitted = next(one for one in outcome.fitted if one.goal == name)
        if not fitted.meets_budgets:
            return self._leave_out(text, "no model that was found is within its budgets")
        self._asked.append(text)
        self._say(f"{text!r}: accuracy {fitted.costs['accuracy']:.4f}", goal=text, model=fitted.file)
        return True

    def _leave_out(self, text: str, why: str) -> bool:
        self._refused[text] = why
        self._keep()
        self._say(f"{text!r} is left out: {why}", goal=text, refused=why)
        return False

    def _release(self, texts: list[str]) -> None:
        from walle import adapt

        goals = self._goals(self._asked)
        job = dataclasses.replace(self._job, goals=goals)
        (outcome,) = adapt.run(job, self._out, method=self._method, resume=True)
        started = self._release_of(goals).start(outcome, self._out)
        self._keep()
        self._say(f"{started['id']} brings {', '.join(map(repr, texts))}", release=started["id"], goals=texts)

    def _release_of(self, goals: "tuple[Goal, ...]") -> Any:
        from walle.cli.adapt.release import AdaptedRelease

        where = self._scenario, self._task, self._folder, self._file
        return AdaptedRelease(*where, goals, url=self._url, token=self._token)

    def _keep(self) -> None:
        self._out.mkdir(parents=True, exist_ok=True)
        record = json.dumps({"asked": self._asked, "refused": self._refused}, indent=1)
        write_file(self._out / _RECORD, record + "\n", mode=0o644)

    def _say(self, text: str, **fields: Any) -> None:
        if self._as_json:
            emit_line(fields)
        else:
            emit(None, as_json=False, text=escape(printable(text)))
