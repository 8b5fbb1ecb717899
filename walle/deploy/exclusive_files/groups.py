"""Exclusive files of groups (§6): one file for all devices that a rule takes, sealed to each device when it asks.

What is stored is one encrypted file for each rule, never one for each device. A device's sealed file is a function of
its contents, the device's key and a secret of the cloud (`walle.trust.sealing.seal_again`), so that every gateway
makes the same bytes again, and a device that asks once a minute fetches a file once. Of the files of one name the
newest whose rule takes the device is its own, unless one was put for the device itself.
"""

import collections
import dataclasses
import hashlib
import hmac
import json
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from walle.base.clock import Clock, SystemClock
from walle.base.durable_file import write_new_file
from walle.deploy.exclusive_files.store import ExclusiveStore, GroupRow
from walle.deploy.policies.policy import Policy
from walle.deploy.policies.rule_budget import check_budget
from walle.deploy.policies.rule_index import PolicyIndex
from walle.errors import ConfigError, DeployError
from walle.protocol import SEAL_OVERHEAD_BYTES, Profile, SealedFile, canonical_json, seal_info
from walle.trust.sealing import seal_again

MAX_GROUP_FILES = 200  # limit of a cloud
_KEY_BYTES = 32
_NONCE_BYTES = 12
_REMEMBERED = 50_000  # hashes of sealed files, some 250 bytes each

_LOG = logging.getLogger(__name__)


class TooManyGroupFilesError(DeployError):
    """A cloud that has as many exclusive files of groups as it may. Over HTTP: 409."""

    status = 409

    def __str__(self) -> str:
        return f"there are {MAX_GROUP_FILES} exclusive files of groups, the limit of a cloud; remove an unused one"


class GroupKey:
    """The cloud's key of group files: 32 bytes in hex at `path`, which is made where it is absent.

    Raises:
        ConfigError: the file is damaged.
    """

    def __init__(self, path: Path) -> None:
        if not path.exists():
            write_new_file(path, f"{os.urandom(_KEY_BYTES).hex()}\n")
        try:
            key = bytes.fromhex(path.read_text().strip())
        except ValueError as error:
            raise ConfigError(
                f"{path}: is damaged; remove it, start the cloud, and put the files of groups again"
            ) from error
        if len(key) != _KEY_BYTES:
            raise ConfigError(f"{path}: is damaged; remove it, start the cloud, and put the files of groups again")
        self._aead = AESGCM(hmac.digest(key, b"contents of group files", "sha256"))
        self.sealing_secret = hmac.digest(key, b"sealing of group files", "sha256")

    def encrypt(self, data: bytes, task: str, name: str) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._aead.encrypt(nonce, data, canonical_json([task, name]))

    def decrypt(self, encrypted: bytes, task: str, name: str) -> bytes:
        """Return the contents. Raises InvalidTag."""
        return self._aead.decrypt(encrypted[:_NONCE_BYTES], encrypted[_NONCE_BYTES:], canonical_json([task, name]))


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupFile:
    """A file of a group as its cloud knows it. `number` is another one whenever a file is put; times as elsewhere."""

    number: int
    task: str
    name: str
    policy: Policy
    size_bytes: int  # size of the contents
    put_s: float
    put_by: str

    def to_plain(self) -> dict[str, Any]:
        plain = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**plain, "policy": self.policy.to_plain()}


class GroupPart(NamedTuple):
    """Sealed files that groups give a device, and a number that grows with each change of any group's files."""

    serial: int = 0
    files: tuple[SealedFile, ...] = ()


class _State(NamedTuple):
    serial: int
    files: tuple[GroupFile, ...]  # the newest first
    policies: PolicyIndex


class GroupFiles:
    """The files of groups in a store, for one gateway. Calls block, for any thread; errors as of the store.

    `key` is called at the first use.
    """

    def __init__(self, store: ExclusiveStore, key: Callable[[], GroupKey], *, clock: Clock | None = None) -> None:
        self._store = store
        self._make_key = key
        self._key: GroupKey | None = None
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._state = _State(-1, (), PolicyIndex(()))
        # Hash of what a file is when sealed to a device's key, by number and key.
        self._known: collections.OrderedDict[tuple[int, bytes], str] = collections.OrderedDict()

    def put(self, task: str, name: str, policy: Policy, data: bytes, *, by: str) -> None:
        """Give the devices of a policy a file, in place of the one by this name that is for the same rule.

        Raises:
            TooManyGroupFilesError: the cloud has MAX_GROUP_FILES others.
            PatternBudgetError: the rule has too many patterns beside those of the scenario's files.
        """
        scenario = task.rpartition("/")[0]
        check_budget(scenario, "exclusive files of groups", policy, (one.policy for one in self.files(scenario)))
        encrypted = self._group_key().encrypt(data, task, name)
        columns = json.dumps({column: kind.value for column, kind in policy.columns})
        key = (task, name, policy.app_version, policy.rule)
        row = GroupRow(0, *key, columns, len(data), self._clock.time(), by)
        if not self._store.put_group(row, encrypted, most=MAX_GROUP_FILES):
            raise TooManyGroupFilesError

    def has(self, task: str, name: str, policy: Policy) -> bool:
        """Return whether there is a file for this rule, whatever types its columns had."""
        return any((one.task, one.name, _key(one.policy)) == (task, name, _key(policy)) for one in self._read().files)

    def remove(self, task: str, name: str, policy: Policy) -> bool:
        """Take a file from the devices of a rule; return whether there was one."""
        return self._store.remove_group(task, name, policy.app_version, policy.rule)

    def files(self, scenario: str, *, task: str = "") -> list[GroupFile]:
        """Return the files of a scenario's tasks, the newest first; `task` without the scenario."""
        return [
            one
            for one in self._read().files
            if one.task.rpartition("/")[0] == scenario and task in ("", one.task.rpartition("/")[2])
        ]

    def serial(self) -> int:
        """Return the number that grows with each change."""
        return self._read().serial

    def of(self, profile: Profile) -> list[GroupFile]:
        """Return the files that a device's groups have for it: of each name the newest."""
        state = self._read()
        if not state.files:
            return []
        found = state.policies.matching(profile)
        chosen: dict[tuple[str, str], GroupFile] = {}
        for number, file in enumerate(state.files):
            if found >> number & 1:
                chosen.setdefault((file.task, file.name), file)
        return [chosen[key] for key in sorted(chosen)]

    def part(
        self, device_id: str, generation: int, public_key: bytes, files: list[GroupFile]
    ) -> tuple[SealedFile, ...]:
        """Return the list's entries of files, as they are when sealed to a device's key."""
        found = []
        for file in files:
            sha256 = self._sha256(file, device_id, generation, public_key)
            if sha256:
                size_bytes = file.size_bytes + SEAL_OVERHEAD_BYTES
                found.append(SealedFile(task=file.task, name=file.name, sha256=sha256, size_bytes=size_bytes))
        return tuple(found)

    def sealed(
        self, device_id: str, generation: int, public_key: bytes, files: list[GroupFile], sha256: str
    ) -> bytes | None:
        """Return the one of the sealed files that has this hash, None where none has."""
        for file in files:
            if self._sha256(file, device_id, generation, public_key) == sha256:
                return self._seal(file, device_id, generation, public_key)
        return None

    # --- internals ----------------------------------------------------------------------------------------------------

    def _group_key(self) -> GroupKey:
        with self._lock:
            if self._key is None:
                self._key = self._make_key()
            return self._key

    def _read(self) -> _State:
        state = self._state
        serial, rows = self._store.group_rows(state.serial)
        if rows is None:
            return state
        files = [
            GroupFile(
                number=row.number,
                task=row.task,
                name=row.name,
                policy=Policy.from_plain(
                    {"app_version": row.app_version, "rule": row.rule, "columns": json.loads(row.columns)}
                ),
                size_bytes=row.size_bytes,
                put_s=row.put_s,
                put_by=row.put_by,
            )
            for row in rows
        ]
        state = _State(serial, tuple(files), PolicyIndex([one.policy for one in files]))
        if state.serial > self._state.serial:
            self._state = state
        return state

    def _sha256(self, file: GroupFile, device_id: str, generation: int, public_key: bytes) -> str:
        """Return the hash of a sealed file, "" where the file cannot be read."""
        key = file.number, hashlib.sha256(canonical_json([device_id, generation]) + public_key).digest()
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]
        sealed = self._seal(file, device_id, generation, public_key)
        sha256 = "" if sealed is None else hashlib.sha256(sealed).hexdigest()
        with self._lock:
            self._known[key] = sha256
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return sha256

    def _seal(self, file: GroupFile, device_id: str, generation: int, public_key: bytes) -> bytes | None:
        encrypted = self._store.group_contents(file.number)
        if encrypted is None:  # removed meanwhile
            return None
        key = self._group_key()
        try:
            data = key.decrypt(encrypted, file.task, file.name)
        except InvalidTag:
            what = "exclusive file %s of %s, for a group, cannot be read with this cloud's key; put it again"
            _LOG.error(what, file.name, file.task)
            return None
        info = seal_info(device_id, generation, file.task, file.name)
        return seal_again(data, public_key, info, key.sealing_secret)


def _key(policy: Policy) -> tuple[str, str]:
    return policy.app_version, policy.rule
