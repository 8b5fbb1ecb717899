"""Bodies of requests about releases; the options of the gate are those that `walle.deploy.gate.gate.Gate` declares."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainValidator, WithJsonSchema, create_model

from walle.deploy.gate.gate import GATE_OPTIONS, Gate
from walle.deploy.gate.option import GateOption
from walle.deploy.policies.policy import MAX_POLICY_DEVICES, Policy
from walle.deploy.policies.rule import MAX_RULE_CHARS
from walle.deploy.releases.reachability import KEEP_VERSIONS
from walle.deploy.releases.request import ReleaseRequest
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


_TYPES = {
    "policy": Annotated[PolicyBody, AfterValidator(PolicyBody.to_policy)],
    "gate": Annotated[Gate, PlainValidator(_gate), WithJsonSchema(_GATE_SCHEMA)],
}  # fields whose JSON is not their value


def _body_field(field: dataclasses.Field[Any]) -> tuple[Any, Any]:
    """Return the type of a request's field in a body, and its default and description."""
    about: dict[str, Any] = {"description": field.metadata["meaning"] or None}
    if field.default is not dataclasses.MISSING:
        about["default"] = field.default
    elif field.default_factory is not dataclasses.MISSING:
        about["default_factory"] = field.default_factory
    return _TYPES.get(field.name, field.type), Field(**about)


_FIELDS: dict[str, Any] = {one.name: _body_field(one) for one in dataclasses.fields(ReleaseRequest)}
_RequestBody: Any = create_model("_RequestBody", __base__=_Strict, **_FIELDS)


class CreateBody(_RequestBody):  # type: ignore[misc]
    """A release to make: the fields of `walle.deploy.releases.request.ReleaseRequest`."""

    start: bool = Field(default=True, description="whether to start it; false: somebody else does, in the dashboard")

    def to_request(self) -> ReleaseRequest:
        return ReleaseRequest(**{name: getattr(self, name) for name in _FIELDS})


class RollbackBody(_Strict):
    reason: str = ""
