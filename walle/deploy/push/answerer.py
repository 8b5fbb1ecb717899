"""The push answer (§6): the profile comes with the device's business requests, the answer goes with the responses.

`Answerer` holds the release table. It knows profiles by the raw header, and decisions by the digests in it, so that an
answer to an up-to-date device is one look-up. `walle.deploy.push.middleware` adds it to an app.
"""

import json
import random
from collections.abc import Callable, Sequence

from walle.deploy.policies.policy import Policy
from walle.deploy.policies.uploaded_attributes import UploadedTables
from walle.deploy.push.directive_texts import DirectiveTexts, Headers, tasks_header
from walle.deploy.push.known_parts import KnownParts
from walle.deploy.push.known_profiles import KnownProfile, KnownProfiles
from walle.deploy.push.part_decisions import PartDecisions
from walle.deploy.push.pull_budget import PullBudget
from walle.deploy.push.seen_devices import SeenDevices
from walle.deploy.releases.decision import NOTHING, Decision, Due, Place, cut
from walle.deploy.releases.table import ReleaseTable
from walle.protocol import TRUST_HEADER, Directive, Profile, ProtocolError
from walle.protocol.traces import TRACE_HEADER

ERROR_HEADER = "X-Walle-Error"

_TRUST = TRUST_HEADER.lower().encode()
_TRACE = TRACE_HEADER.lower().encode()
_ERROR = ERROR_HEADER.lower().encode()
_MAX_ERROR_CHARS = 300


class Answerer:
    """Computes response headers from profile headers. One event loop; `swap` takes effect at the next call.

    Short profiles are answered by the digests of their parts, which devices with the same versions have in common; a
    part that is not in `parts_bytes` of known ones is asked for. An answer of more than `max_answer_bytes` is cut
    (`walle.deploy.releases.decision.cut`); a device with a short profile sends the place where the next one continues,
    for others that is random. Pulls are within the `budget`, if there is one. With a `trace_ratio` devices are asked
    for the times of that share of their installs and runs.
    """

    def __init__(
        self,
        table: ReleaseTable | None = None,
        *,
        cache_bytes: int = 64 << 20,
        parts_bytes: int = 64 << 20,
        max_answer_bytes: int = 8192,
        recent_devices: int = 4096,
        budget: PullBudget | None = None,
        random_source: random.Random | None = None,
        trace_ratio: float = 0.0,
    ) -> None:
        self.table = table or ReleaseTable()
        self._trace_ratio = trace_ratio
        self.stamp = self._stamp()  # for every answer to a profile
        self.on_directives: Callable[[str, Sequence[Directive]], None] | None = None  # device and directives it gets
        self.repeated = 0  # profiles of which the same header was answered before
        self.fresh = 0  # profiles that were parsed
        self.broken = 0
        self.foreign = 0  # profiles of another device than the one that sent them
        self.asked = 0  # short profiles with parts that were not known
        self.answered = 0  # fresh profiles whose answer held directives
        self.budget = budget
        self.parts = KnownParts(parts_bytes)
        self.profiles = KnownProfiles(cache_bytes)
        self.decisions = PartDecisions(self.parts)
        self.texts = DirectiveTexts()
        self.devices = SeenDevices(self.parts, recent_devices)
        self._uploaded = UploadedTables()
        self._max_answer_bytes = max_answer_bytes
        self._random = random_source or random.Random()

    # --- what answers are made from -----------------------------------------------------------------------------------

    def swap(self, table: ReleaseTable) -> None:
        """Set the table for answers; one that is older than the current table is ignored."""
        if table.generation < self.table.generation:
            return
        if table.rows == self.table.rows:  # only a later timestamp: the cached answers hold
            self.table = self.table.restamped(table.generation, table.timestamp)
            self.stamp = self._stamp()
            return
        self.table = table
        self.stamp = self._stamp()
        self.profiles.clear()
        self.decisions.clear()
        self.texts.clear()

    def _stamp(self) -> Headers:
        trust = ((_TRUST, self.table.timestamp.encode()),) if self.table.timestamp else ()
        return (*trust, (_TRACE, str(self._trace_ratio).encode())) if self._trace_ratio else trust

    def forget(self) -> None:
        """Take the next table whatever its generation is; until then the present one is still answered."""
        self.table = self.table.restamped(-1, self.table.timestamp)

    def swap_uploaded(self, uploaded: UploadedTables) -> None:
        """Set the uploaded attributes for answers, from the next call on."""
        self._uploaded = uploaded

    def join_uploaded(self, profile: Profile) -> Profile:
        """Return a profile with what was uploaded of it."""
        return self._uploaded.join(profile)

    # --- profile in, headers out --------------------------------------------------------------------------------------

    def headers(self, raw: bytes, sender: str, have: bytes | None = None) -> Headers:
        """Return the response headers for a raw profile header; none where the device is up to date.

        `have` is X-Walle-Have of the same request. A header that cannot be read, or the profile of another device than
        the `sender`, gets an X-Walle-Error header with the reason.
        """
        sent = self.profiles.get(raw)
        is_fresh = sent is None
        try:
            if sent is None:
                sent = KnownProfile.read(raw, self.table.index)
            if sent.profile is not None and sent.profile.device_id != sender:
                return self._refuse_foreign(sent.profile.device_id, sender)
            if is_fresh:
                self.fresh += 1
                self.profiles.add(sent)
            else:
                self.repeated += 1
            if self.devices.seen(sender) is not sent or self.devices.recent(sender) is not sent:
                self.devices.note(sender, sent)
            index = self.table.index
            policies = sent.matching & index.by_device(sender)
            if policies & index.uploaded:
                policies = index.by_uploaded(self._uploaded.join(sent.of_device(sender)), policies)
            unknown: Sequence[int] = ()
            decision = sent.decision
            if policies != sent.policies or (sent.sender is not None and sent.sender != sender):
                decision, unknown = self._decide(sent, policies, sender, have)
        except ProtocolError as error:
            self.broken += 1
            return error_header(str(error))
        if decision is NOTHING and not unknown:
            return ()
        due = decision.due(sender, self.table.draws)
        if not (due.urgent or due.ordinary or unknown):
            return ()
        answer = self._answer(due, sent, sender, unknown)
        self.answered += is_fresh and bool(answer)
        return answer

    def _refuse_foreign(self, device_id: str, sender: str) -> Headers:
        self.foreign += 1
        return error_header(f"the profile is of device {device_id[:100]!r}, the session of {sender[:100]!r}")

    def _decide(
        self, sent: KnownProfile, policies: int, sender: str, have: bytes | None
    ) -> tuple[Decision, Sequence[int]]:
        """Return the decision on the parts of a profile that are known, and the numbers of the others.

        Raises:
            ProtocolError: `have` cannot be read.
        """
        if policies == sent.policies:
            self._decide_short(sent, policies, sender, None)
            sent.sender = None  # several devices have it: its parts are kept longer from now on
            return sent.decision, ()
        if sent.profile is None:
            return self._decide_short(sent, policies, sender, have)
        (steps,) = self.table.steps(policies, 1)
        self.profiles.settle(sent, policies, Decision.of(steps, sent.profile.tasks, {}))
        return sent.decision, ()

    def _decide_short(
        self, sent: KnownProfile, policies: int, sender: str, have: bytes | None
    ) -> tuple[Decision, Sequence[int]]:
        decided, unknown = self.decisions.find(self.table, policies, sent.parts, sender, have)
        if unknown:
            self.asked += 1
        else:
            self.profiles.settle(sent, policies, decided.decision, decided.sender)
        return decided.decision, unknown

    def _answer(self, due: Due, sent: KnownProfile, sender: str, unknown: Sequence[int]) -> Headers:
        wait_s = 0
        if sent.profile is None:
            place = Place.from_text(sent.place) if sent.place else Place()
            chosen, following = cut(due, place, self.texts.size, self._max_answer_bytes)
            chosen, wait_s = self._admitted(chosen, due, sender)
            if self.on_directives is not None:
                self.on_directives(sender, chosen)
            if following is not None or unknown or wait_s:
                fields = [f'"place":{json.dumps(following.to_text())}'] if following is not None else []
                fields.append(f'"tasks":{self.texts.listed(chosen)}')
                fields += [f'"unknown":{unknown}'] if unknown else []
                fields += [f'"wait_s":{wait_s}'] if wait_s else []
                return tasks_header(f"{{{','.join(fields)}}}")
        else:
            chosen, following = cut(due, Place(), self.texts.size, self._max_answer_bytes)
            if following is not None:  # an older device cannot say where the last answer ended
                first, then = (self._random.choice(one).task if one else "" for one in due)
                place = Place(first, then, self._random.random() < 0.5)
                chosen, _ = cut(due, place, self.texts.size, self._max_answer_bytes)
            chosen, _ = self._admitted(chosen, due, sender)
            if self.on_directives is not None:
                self.on_directives(sender, chosen)
        return self.texts.answer(chosen) if chosen else ()

    def _admitted(self, chosen: list[Directive], due: Due, sender: str) -> tuple[list[Directive], int]:
        """Return the directives of an answer that the pull budget admits, and after how many seconds it has others."""
        if self.budget is None or not due.ordinary:
            return chosen, 0
        urgent = frozenset(map(id, due.urgent))
        ordinary, wait_s = self.budget.admit(sender, tuple(one for one in chosen if id(one) not in urgent))
        return [*(one for one in chosen if id(one) in urgent), *ordinary], wait_s

    # --- devices that were seen ---------------------------------------------------------------------------------------

    def note_elsewhere(self, device_id: str, raw: bytes) -> bool:
        """Take note of a device that sent this full profile to another gateway; return whether it is one of it."""
        try:
            sent = KnownProfile.read(raw, self.table.index)
        except ProtocolError:
            return False
        if sent.profile is None or sent.profile.device_id != device_id:
            return False
        self.devices.note(device_id, sent)
        return True

    def recent(self, count: int, policy: Policy, task: str = "") -> tuple[str, ...]:
        """Return up to `count` devices of the policy, ordered by the last change of their profile, newest first.

        Devices for which a more specific release of the task is are left out: they would not get this one.
        """
        found: list[str] = []
        row = self.table.rows.get(task)
        entries = [one for one in row.entries if not one.variant] if row is not None else []
        before = [entry.policy for entry in entries if entry.policy.tier > policy.tier]
        for sent in self.devices.profiles():
            if len(found) == count:
                break
            profile = self._uploaded.join(sent)
            if policy.matches(profile) and not any(other.matches(profile) for other in before):
                found.append(profile.device_id)
        return tuple(found)


def error_header(text: str) -> Headers:
    """Return the response header that tells a device why its profile has no answer."""
    shown = "".join(letter if " " <= letter <= "~" else "?" for letter in text[:_MAX_ERROR_CHARS])
    return ((_ERROR, shown.encode()),)
