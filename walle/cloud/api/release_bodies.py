"""Bodies of requests about releases; the options of the gate are those that `walle.deploy.gate.gate.Gate` declares."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, WithJsonSchema

from walle.deploy.gate.gate import GATE_OPTIONS, Gate
from walle.deploy.gate.option import GateOption
from walle.deploy.policies.policy import MAX_POLICY_DEVICES, Policy
from walle.deploy.policies.rule import MAX_RULE_CHARS
from walle.deploy.releases.reachability import KEEP_VERSIONS
from walle.deploy.releases.release import DEFAULT_BETA_COUNT, DEFAULT_STEPS, ReleaseRequest
from walle.deploy.releases.service import MIN_KEEP_VERSIONS


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class PolicyBody(_Strict):
    app_version: str = Field(default="", description="PEP 440 range such as '>=10,<11'; empty: every device")
    rule: str = Field(
        default="", max_length=MAX_RULE_CHARS, description="CEL over declared attributes, such as os == 'android'"
    )
    devices: list[str] = Field(default=[], max_length=MAX_POLICY_DEVICES, description="ids; empty: any device")

    def to_policy(self) -> Policy:
        """Return the policy, whose rule is not checked yet."""
        return Policy(self.app_version, self.rule, (), tuple(sorted(set(self.devices))))


def _gate(plain: object) -> Gate:
    if not isinstance(plain, Mapping):
        raise ValueError("give an object with options of the gate")  # noqa: TRY004 - it becomes an error of the body
    return Gate.from_plain(plain)


def _option_schema(one: GateOption) -> dict[str, Any]:
    """Return the JSON schema of an option of the gate."""
    schema: dict[str, Any] = {"description": f"{one.meaning}; {one.form}"}
    least, most = one.allowed.least, one.allowed.most
    if one.kind is tuple:
        return {**schema, "default": [], "type": "array", "items": {"type": "string"}, "maxItems": most}
    kind = "integer" if one.kind is int else "number"
    ends = ("exclusiveMinimum", "exclusiveMaximum") if one.allowed.is_open else ("minimum", "maximum")
    return {**schema, "default": one.default, "type": kind, ends[0]: least, ends[1]: most}


_GATE_SCHEMA = {
    "type": "object",
    "properties": {key: _option_schema(one) for key, one in GATE_OPTIONS.items()},
    "additionalProperties": False,
}


class RetireBody(_Strict):
    """Which full releases of a scenario to give up; an empty `task` is for all its tasks."""

    scenario: str
    task: str = ""
    keep_versions: int = Field(default=KEEP_VERSIONS, ge=MIN_KEEP_VERSIONS, le=1000)
    dry_run: bool = False


class CreateBody(_Strict):
    """A release to make: see `walle.deploy.releases.release.ReleaseRequest`."""

    scenario: str
    task: str
    version: str = Field(description="such as v3; the tag task/v3 must have been pushed")
    policy: PolicyBody = PolicyBody()
    beta: int | list[str] = Field(
        default=DEFAULT_BETA_COUNT, description="how many beta devices, or their ids; 0: no beta"
    )
    steps: list[float] = Field(
        default=list(DEFAULT_STEPS),
        description="shares of the devices at the steps of the percentage rollout, growing to 1",
    )
    gate: Annotated[Gate, PlainValidator(_gate), WithJsonSchema(_GATE_SCHEMA)] = Field(
        default_factory=Gate, description="conditions for a step to be accepted or rejected"
    )
    start: bool = Field(default=True, description="whether to start it; false: somebody else does, in the dashboard")

    def to_request(self) -> ReleaseRequest:
        return ReleaseRequest(
            scenario=self.scenario,
            task=self.task,
            version=self.version,
            policy=self.policy.to_policy(),
            beta=self.beta if isinstance(self.beta, int) else tuple(self.beta),
            steps=tuple(self.steps),
            gate=self.gate,
        )


class RollbackBody(_Strict):
    reason: str = ""
