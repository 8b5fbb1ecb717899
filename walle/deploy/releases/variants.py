"""Variants of a release: the devices that each is for, and its manifest once the version is built. Pure.

A device gets the first variant whose policy takes it, and the version's own files where none does. The release's own
policy is a part of each; its steps, its gate and its rollback are those of the release, for all variants together.
"""

import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Self

from walle.deploy.policies.policy import Policy
from walle.deploy.policies.rule import RuleError
from walle.deploy.releases.request import ReleaseRequestError
from walle.task.format.variants import Variant


@dataclasses.dataclass(frozen=True)
class ReleaseVariant:
    """A variant; `manifest` and `size_bytes` are those of its envelope, "" and 0 before the version is built."""

    name: str
    policy: Policy
    manifest: str = ""
    size_bytes: int = 0

    def to_plain(self) -> dict[str, Any]:
        return {**vars(self), "policy": self.policy.to_plain()}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        return cls(plain["name"], Policy.from_plain(plain["policy"]), plain["manifest"], plain["size_bytes"])


@dataclasses.dataclass(frozen=True)
class BuiltVariant:
    """The envelope of a variant: its sha256 and its length."""

    name: str
    manifest: str
    size_bytes: int


async def variants_of(
    policy: Policy, declared: Sequence[Variant], typed: Callable[[Policy], Awaitable[Policy]]
) -> tuple[ReleaseVariant, ...]:
    """Return the declared variants of a version that is released to the devices of `policy`.

    `typed` gives a policy the columns of its rule.

    Raises:
        ReleaseRequestError: the rule of one is invalid, or names an attribute that devices do not have.
    """
    found = []
    for one in declared:
        try:
            rule = (await typed(Policy(rule=one.rule))).rule  # a rule by itself: it must not end the parenthesis below
            if policy.rule:
                rule = f"({policy.rule}\n) && ({rule}\n)"  # a comment ends with its line
            found.append(ReleaseVariant(one.name, await typed(dataclasses.replace(policy, rule=rule, columns=()))))
        except RuleError as error:
            what = f"the rule of [variants.{one.name}] in its task.toml: {error}"
            raise ReleaseRequestError("version", what) from error
    return tuple(found)


def with_envelopes(variants: Iterable[ReleaseVariant], envelopes: Sequence[BuiltVariant]) -> tuple[ReleaseVariant, ...]:
    """Return the variants with their envelopes; those without one are left out."""
    by_name = {one.name: one for one in envelopes}
    return tuple(
        dataclasses.replace(one, manifest=by_name[one.name].manifest, size_bytes=by_name[one.name].size_bytes)
        for one in variants
        if one.name in by_name
    )
