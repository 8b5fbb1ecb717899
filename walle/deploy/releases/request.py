"""Request of a release: each of its fields is declared once, with its default, its meaning and the command's options.

`walle release start` makes its options from these fields, and the API its body (`walle.cloud.api.release_bodies`); the
journal keeps the request. A new field is a line here, and one in `RequestFields` of `walle.client.release_client`.
Policies are imported late: commands load this module, and on a device no rules.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

from walle.base.names import NAME_RULE, is_name
from walle.base.plain_fields import known_fields
from walle.deploy.gate.gate import GATE_OPTIONS, Gate
from walle.deploy.gate.option import parse_options
from walle.errors import DeployError

if TYPE_CHECKING:
    from walle.deploy.policies.policy import Policy

DEFAULT_STEPS = (0.25, 0.5, 1.0)
DEFAULT_BETA_COUNT = 2
MAX_BETA_DEVICES = 1000
MAX_STEPS = 100

_NAME = ("scenario", "task", "version")  # arguments of the command
_VERSION = re.compile(r"v[1-9][0-9]{0,8}")


class ReleaseRequestError(DeployError):
    """An invalid request of a release. `field` names the wrong field."""

    def __init__(self, field: str, what: str) -> None:
        super().__init__(field, what)
        self.field = field
        self.what = what

    def __str__(self) -> str:
        return f"release.{self.field}: {self.what}"


@dataclasses.dataclass(frozen=True)
class Flag:
    """Option of `walle release start` that gives a field, or the part `key` of it.

    `kind` is the type of the command's parameter. `parse` turns its value into that of the request's body, and may
    raise a DeployError.
    """

    name: str
    help: str
    key: str = ""
    kind: Any = str
    least: float | None = None
    metavar: str | None = None
    parse: Callable[[Any], Any] | None = None

    @property
    def parameter(self) -> str:
        """Name of the command's parameter."""
        return self.name.removeprefix("--").replace("-", "_")


def _about(meaning: str, *flags: Flag) -> dict[str, Any]:
    """Return a field's meaning, as the API describes it, and its options; without `flags` it has one of its name."""
    return {"meaning": meaning, "flags": flags}


def _every_device() -> "Policy":
    from walle.deploy.policies.policy import Policy

    return Policy()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReleaseRequest:
    """Request of a person: the version `scenario`/`task` `version` (tag `task/version`) for the devices of `policy`.

    `beta` is either the ids of the beta devices or the count to choose from recently seen ones; 0 skips the beta.
    `steps` are the shares of the gray steps, growing, the last one 1.

    Raises:
        ReleaseRequestError: a field is wrong.
    """

    scenario: str = dataclasses.field(metadata=_about(""))
    task: str = dataclasses.field(metadata=_about(""))
    version: str = dataclasses.field(metadata=_about("such as v3; the tag task/v3 must have been pushed"))
    policy: "Policy" = dataclasses.field(
        default_factory=_every_device,
        metadata=_about(
            "",
            Flag("--app-version", "Only devices of these app versions, such as '>=10,<11'.", key="app_version"),
            Flag("--rule", "Only devices for which it is true, such as: os == 'android'.", key="rule"),
            Flag(
                "--only-device",
                "Only this device's id; once for each. It takes precedence over all other releases.",
                key="devices",
                kind=list[str],
            ),
        ),
    )
    beta: tuple[str, ...] | int = dataclasses.field(
        default=DEFAULT_BETA_COUNT,
        metadata=_about(
            "how many beta devices, or their ids; 0: no beta",
            Flag("--beta", "How many beta devices; 0 for no beta.", kind=int, least=0),
            Flag("--beta-device", "A beta device's id; once for each.", kind=list[str]),
        ),
    )
    steps: tuple[float, ...] = dataclasses.field(
        default=DEFAULT_STEPS,
        metadata=_about(
            "shares of the devices at the steps of the percentage rollout, growing to 1",
            Flag(
                "--step",
                "Share of the devices at a step of the percentage rollout; once for each, the last one 1.",
                kind=list[float],
            ),
        ),
    )
    gate: Gate = dataclasses.field(
        default_factory=Gate,
        metadata=_about(
            "conditions for a step to be accepted or rejected",
            Flag(
                "--gate",
                "Option of the gate, see above; once for each.",
                kind=list[str],
                metavar="KEY=VALUE",
                parse=functools.partial(parse_options, GATE_OPTIONS),
            ),
        ),
    )

    def __post_init__(self) -> None:
        for field in ("scenario", "task"):
            if not is_name(getattr(self, field)):
                raise ReleaseRequestError(field, f"{getattr(self, field)[:100]!r} is not a name ({NAME_RULE})")
        if not _VERSION.fullmatch(self.version):
            raise ReleaseRequestError(
                "version", f"{self.version[:100]!r} is not a version; tag the task as {self.task}/v1"
            )
        if isinstance(self.beta, int):
            if not 0 <= self.beta <= MAX_BETA_DEVICES:
                raise ReleaseRequestError("beta", f"{self.beta} devices is not between 0 and {MAX_BETA_DEVICES}")
        elif not self.beta or len(self.beta) > MAX_BETA_DEVICES or not all(self.beta):
            raise ReleaseRequestError("beta", f"list 1 to {MAX_BETA_DEVICES} device ids, or give a number (0: no beta)")
        if not 1 <= len(self.steps) <= MAX_STEPS:
            raise ReleaseRequestError("steps", f"{len(self.steps)} steps is not between 1 and {MAX_STEPS}")
        grows = all(before < after for before, after in zip((0.0, *self.steps), self.steps, strict=False))
        if not grows or self.steps[-1] != 1:
            raise ReleaseRequestError("steps", f"{list(self.steps)} must grow from above 0 and end with 1.0")

    @property
    def name(self) -> str:
        """The task's full name, scenario/task."""
        return f"{self.scenario}/{self.task}"

    @property
    def beta_count(self) -> int | None:
        """Return how many beta devices to choose, of named ones no more than there are; None where they are listed."""
        if not isinstance(self.beta, int):
            return None
        return min(self.beta, len(self.policy.devices)) if self.policy.devices else self.beta

    @property
    def tag(self) -> str:
        return f"{self.task}/{self.version}"

    def to_plain(self) -> dict[str, Any]:
        """Return the request as JSON-ready values."""
        plain = {name: list(one) if isinstance(one, tuple) else one for name, one in vars(self).items()}
        return plain | {"policy": self.policy.to_plain(), "gate": dataclasses.asdict(self.gate)}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        from walle.deploy.policies.policy import Policy

        readers: dict[str, Callable[[Any], Any]] = {"policy": Policy.from_plain, "gate": Gate.from_plain}
        # A journal of an older walle lacks the newer fields, which have their defaults.
        known = known_fields(cls, plain)
        return cls(**{name: readers.get(name, _tuple)(one) for name, one in known.items()})


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def start_flags() -> dict[str, tuple[Flag, ...]]:
    """Return the options of `walle release start`, by the field that they give."""
    return {field.name: _flags_of(field) for field in dataclasses.fields(ReleaseRequest) if field.name not in _NAME}


def _flags_of(field: dataclasses.Field[Any]) -> tuple[Flag, ...]:
    meaning = field.metadata["meaning"]
    if flags := field.metadata["flags"]:
        return tuple(flags)
    return (Flag(f"--{field.name.replace('_', '-')}", f"{meaning[0].upper()}{meaning[1:]}.", kind=field.type),)
