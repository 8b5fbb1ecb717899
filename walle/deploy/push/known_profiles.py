"""Profiles that a gateway knows by their raw header, each with the decision on it, in bounded memory."""

from collections import OrderedDict
from collections.abc import Collection, Mapping

from walle.deploy.policies.rule_index import PolicyIndex
from walle.deploy.push.profile_parser import parse_short
from walle.deploy.releases.decision import NOTHING, Decision
from walle.protocol import PROFILE_HEADER, Attribute, Profile, ProtocolError

_ENTRY_OVERHEAD_BYTES = 1500
_DIRECTIVE_BYTES = 120  # size of a directive in a decision


class KnownProfile:
    """A profile that was sent: `matching` are the policies that take devices of it, as bits of the table.

    A short one has `parts`, and is of whatever device sends it. A full one has `profile`, of its device.
    """

    profile: Profile | None = None
    decision = NOTHING
    policies = -1  # policies for which `decision` was made
    sender: str | None = None  # the one device that has sent it, since then; None for several
    parts: tuple[str, ...] = ()
    place = ""
    size_bytes = 0  # size in `KnownProfiles`, with the decision

    def __init__(self, raw: bytes, app_version: str, attributes: Mapping[str, Attribute], matching: int) -> None:
        self.raw = raw
        self.app_version = app_version
        self.attributes = attributes
        self.matching = matching

    @classmethod
    def read(cls, raw: bytes, index: PolicyIndex) -> "KnownProfile":
        """Return the profile in a header, matched with the policies of the index. Raises ProtocolError."""
        short = parse_short(raw)
        if short is not None:
            made = cls(raw, short.a, short.x, index.by_attributes(short.a, short.x))
            made.parts = short.p
            if short.n:
                made.place = short.n
            return made
        try:
            full = Profile.from_header(raw.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise ProtocolError(PROFILE_HEADER, str(error)) from error
        made = cls(raw, full.app_version, full.attributes, index.by_attributes(full.app_version, full.attributes))
        made.profile = full
        return made

    def of_device(self, device_id: str) -> Profile:
        """Return the profile of a device that sent this, without tasks."""
        return Profile(device_id, self.app_version, self.attributes)


class KnownProfiles:
    """Profiles by their raw header. Where they take more than `max_bytes`, the oldest go first.

    `get(raw)` returns the profile of a header, None where it is not known.
    """

    def __init__(self, max_bytes: int) -> None:
        self.size_bytes = 0
        self._max_bytes = max_bytes
        # Ordered: the first key of a dict is found by a search through what was deleted before it.
        self._profiles: OrderedDict[bytes, KnownProfile] = OrderedDict()
        self.get = self._profiles.get  # called at every request, which a method around it would slow down

    def __len__(self) -> int:
        return len(self._profiles)

    def values(self) -> Collection[KnownProfile]:
        return self._profiles.values()

    def add(self, sent: KnownProfile) -> None:
        """Add a profile, or count a known one as added now. Its size is that of its present decision."""
        before = self._profiles.pop(sent.raw, None)
        if before is not None:
            self.size_bytes -= before.size_bytes
        sent.size_bytes = len(sent.raw) + _ENTRY_OVERHEAD_BYTES + _DIRECTIVE_BYTES * sent.decision.size
        while self._profiles and self.size_bytes + sent.size_bytes > self._max_bytes:
            self.size_bytes -= self._profiles.popitem(last=False)[1].size_bytes
        self._profiles[sent.raw] = sent
        self.size_bytes += sent.size_bytes

    def settle(self, sent: KnownProfile, policies: int, decision: Decision, sender: str | None = None) -> None:
        """Set the decision on a profile, which may be none of the known ones any more."""
        sent.policies, sent.decision, sent.sender = policies, decision, sender
        if self._profiles.get(sent.raw) is sent:
            self.add(sent)

    def clear(self) -> None:
        self._profiles.clear()
        self.size_bytes = 0
