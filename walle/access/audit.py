"""Audit log: hash-chained records of who did what, when and from where, and of the numbers behind each decision.

A folder of segments, `000000000001.jsonl` and so on, each named by its first record's number. A record is a line
of JSON, and its hash covers the hash of the record before, so that a record that is changed, removed, added or moved
breaks the chain (`verify`). Every record is durable when `record` returns: the caller acts after it.

A chain does not show what is missing at its end. Signed heads do: `head.json` beside the segments is renewed now and
then, and `walle audit head` prints one to be kept elsewhere, since a thief of the folder has the key too.

What writes is in `walle.access.audit_folder` and, for records in a database, in `postgres_audit`. Both pass the
same tests.
"""

import abc
import base64
import collections
import contextlib
import dataclasses
import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, Required, Self, TypedDict, Unpack

from cryptography.exceptions import InvalidSignature

from walle.base.waiting import to_the_end
from walle.errors import DeployError
from walle.protocol import printable
from walle.store.threads import StoreThreads
from walle.trust.ed25519_keys import KeyRefusedError, checked_key
from walle.trust.signing import key_id

HEAD_DOMAIN = b"walle audit head 1\0"
HEAD_EVERY = 10  # records between two signed heads in the folder
MAX_TEXT_CHARS = 500  # limit of each text in a record
MAX_DETAILS_BYTES = 16 << 10
MAX_OWED = 1_000
FIRST = "0" * 64  # the hash before the first record
HEAD_FILE = "head.json"
_SEGMENT = "[0-9]" * 12 + ".jsonl"
_LOG = logging.getLogger(__name__)

THREADS = StoreThreads("audit log")  # threads for calls that block
type SignHead = Callable[[bytes], tuple[bytes, bytes]]
"""`sign(data)` returns the Ed25519 signature of `data` and the raw public key."""


class AuditError(DeployError):
    """The audit log cannot be written or read. `path` is a file, folder or database; `is_full`: the disk is full.

    `may_pass`: its database is away; over HTTP, a client is told to try again after `retry_after_s`.
    """

    may_pass = False
    retry_after_s: int | None = None

    def __init__(self, path: Path | str, why: str, *, is_full: bool = False) -> None:
        super().__init__(f"audit log {path}: {why}")
        self.path = path
        self.is_full = is_full


class AuditFields(TypedDict, total=False):
    """Fields of a record: `who` is the name of a credential or of a part of the cloud, `subject` what is acted on,
    `address` where the request came from, and `details` are plain data.
    """

    who: Required[str]
    subject: str
    address: str
    details: Mapping[str, Any] | None


class Audit(Protocol):
    """The interface to the audit log for what acts."""

    async def record(self, action: str, *, must: bool = True, **fields: Unpack[AuditFields]) -> None:
        """Return once the record is durable; the caller acts then.

        `action` is a noun and a verb such as `release.start`. With `must` False an action that stops harm (a rollback)
        continues on a full disk: the record is then kept in memory and written with the next one.

        Raises:
            AuditError: the record is not durable. Do not act.
        """


class NoAudit:
    """An audit log that keeps nothing: for tests, and for parts that are used without a cloud."""

    async def record(self, action: str, *, must: bool = True, **fields: Unpack[AuditFields]) -> None:
        pass


@dataclasses.dataclass(frozen=True, kw_only=True)
class AuditRecord:
    """One record; see `Audit.record`. `number` counts from 1; `before` and `hash` are sha256 in hex."""

    number: int
    at_s: float
    action: str
    who: str
    subject: str
    address: str
    details: Mapping[str, Any]
    before: str
    hash: str = ""

    def body(self) -> bytes:
        """Return the bytes that `hash` covers."""
        plain = dataclasses.asdict(self)
        del plain["hash"]
        return _canonical(plain)

    def to_plain(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def to_line(self) -> bytes:
        """Return the line of the record, with its end."""
        return _canonical(self.to_plain()) + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Self:
        """Return the record of a line. Raises ValueError where it is not one."""
        plain = json.loads(line)
        names = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(plain, dict) or plain.keys() != names:
            raise ValueError("its fields are not those of a record")
        kinds = {"number": int, "details": dict} | dict.fromkeys(("action", "who", "subject", "address", "hash"), str)
        for name, kind in kinds.items():
            if type(plain[name]) is not kind:
                raise ValueError(f"{name} is not of type {kind.__name__}")
        return cls(**plain)


@dataclasses.dataclass(frozen=True)
class AuditHead:
    """A signed statement that the log had a record of this number and hash; number 0: it was empty."""

    number: int
    hash: str
    at_s: float
    public_key: str  # base64 of the raw Ed25519 key
    signature: str  # base64

    @staticmethod
    def signed_bytes(number: int, record_hash: str, at_s: float) -> bytes:
        return HEAD_DOMAIN + _canonical({"number": number, "hash": record_hash, "at_s": at_s})

    @classmethod
    def signed(cls, sign: SignHead, number: int, record_hash: str, at_s: float) -> Self:
        """Return a head, signed."""
        at_s = round(at_s, 3)
        signature, public_key = sign(cls.signed_bytes(number, record_hash, at_s))
        encoded = [base64.b64encode(one).decode() for one in (public_key, signature)]
        return cls(number, record_hash, at_s, *encoded)

    def is_signed_by(self, public_key: bytes) -> bool:
        data = self.signed_bytes(self.number, self.hash, self.at_s)
        try:
            signature = base64.b64decode(self.signature, validate=True)
            checked_key(public_key).verify(signature, data)
        except (ValueError, InvalidSignature, KeyRefusedError):
            return False
        return True

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"

    @classmethod
    def load(cls, path: Path) -> Self:
        """Return the head in a file. Raises AuditError."""
        try:
            plain = json.loads(path.read_bytes())
            head = cls(**plain)
        except OSError as error:
            raise AuditError(path, error.strerror or str(error)) from error
        except (ValueError, TypeError) as error:
            raise AuditError(
                path, f"is not a head of an audit log: {error}; make one with: walle audit head"
            ) from error
        kinds = (type(head.number), type(head.hash), type(head.public_key), type(head.signature))
        if kinds != (int, str, str, str) or not isinstance(head.at_s, int | float):
            raise AuditError(path, "is not a head of an audit log; make one with: walle audit head")
        return head


@dataclasses.dataclass(frozen=True)
class AuditFault:
    """A fault that `verify` found: the file, its line from 1 (0: the whole file), and what is wrong."""

    file: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what}" if self.line else f"{self.file}: {self.what}"


@dataclasses.dataclass(frozen=True)
class Verification:
    """Result of `verify`: records read, their first and last numbers (0 without any), the last hash, and faults."""

    records: int
    first: int
    last: int
    hash: str
    faults: tuple[AuditFault, ...]

    @property
    def ok(self) -> bool:
        return not self.faults


class AuditStore(Audit, Protocol):
    """An audit log. Its methods may be called in any thread, and block, but for `record`.

    Raises, from every method:
        AuditError: the log cannot be read, or what is to be written is not durable.
    """

    def append(self, action: str, **fields: Unpack[AuditFields]) -> AuditRecord:
        """Append a record and return it once it is durable."""

    def head(self) -> AuditHead:
        """Return the signed head of what the log has now, and keep it beside the records."""

    def last_head(self) -> AuditHead | None:
        """Return the head that was signed last, None before the first one."""

    def records(self, *, after: int = 0, limit: int = 1000) -> list[AuditRecord]:
        """Return at most `limit` records of numbers above `after`, oldest first, without verifying them."""

    def verified(self, *, heads: tuple[AuditHead, ...] = (), public_key: bytes | None = None) -> Verification:
        """Check each record, the chain, and the signed heads, as `verify`."""


class OwingLog(abc.ABC):
    """Base of audit logs: records of actions that stop harm are kept in memory where they cannot be written."""

    def __init__(self) -> None:
        self._owed: collections.deque[tuple[str, AuditFields]] = collections.deque(maxlen=MAX_OWED)
        self._owed_lost = 0

    @abc.abstractmethod
    def append(self, action: str, **fields: Unpack[AuditFields]) -> AuditRecord:
        """Append a record, after those that are owed, and return it once it is durable; blocks."""

    async def record(self, action: str, *, must: bool = True, **fields: Unpack[AuditFields]) -> None:
        """Append a record; see `Audit.record`. An append that has begun is finished where the caller is cancelled."""
        await to_the_end(THREADS.run(self._append_or_owe, action, fields, must))

    def _append_or_owe(self, action: str, fields: AuditFields, must: bool) -> None:
        try:
            self.append(action, **fields)
        except AuditError as error:
            if must:
                raise
            level = logging.DEBUG if self._owed else logging.ERROR  # the first of them says why
            _LOG.log(
                level, "%s continues without its audit record, which is kept in memory: %s", printable(action), error
            )
            self._owed_lost += len(self._owed) == MAX_OWED
            self._owed.append((action, fields))

    def _late(self) -> list[tuple[str, AuditFields]]:
        """Return the records that are owed, marked as late."""
        late: list[tuple[str, AuditFields]] = [
            (action, {**fields, "details": {**(fields.get("details") or {}), "late": True}})
            for action, fields in self._owed
        ]
        if self._owed_lost:
            late.append(("audit.lost", {"who": "audit", "details": {"records": self._owed_lost}}))
        return late

    def _settle(self, count: int) -> None:
        """Forget the first `count` records that were owed, and those that were lost: they are written."""
        for _ in range(count):
            self._owed.popleft()
        self._owed_lost = 0


# --- reading ----------------------------------------------------------------------------------------------------------


def segments_of(folder: Path) -> list[Path]:
    """Return the segments of a log, oldest first."""
    return sorted(folder.glob(_SEGMENT))


def read_records(folder: Path, *, after: int = 0, limit: int = 1000) -> list[AuditRecord]:
    """Return at most `limit` records of numbers above `after`, oldest first, without verifying them.

    Raises:
        AuditError: a line that is asked for is not a record.
    """
    found: list[AuditRecord] = []
    segments = segments_of(folder)
    ends = [int(one.stem) for one in segments[1:]]
    for segment, next_first in zip(segments, [*ends, None], strict=True):
        if next_first is not None and next_first <= after + 1:
            continue
        for number, line in enumerate(_lines(segment), 1):
            try:
                record = AuditRecord.from_line(line)
            except ValueError as error:
                raise AuditError(
                    segment, f"line {number} is not a record ({error}); see: walle audit verify"
                ) from error
            if record.number > after:
                found.append(record)
            if len(found) == limit:
                return found
    return found


def verify(folder: Path, *, heads: tuple[AuditHead, ...] = (), public_key: bytes | None = None) -> Verification:
    """Check each record, the chain, and the signed heads: that of the folder, and those that were kept elsewhere.

    `public_key` is that of the log; without it the key of the first of `heads` is trusted, else that of the folder's
    head, which then shows damage but no thief. The first records may be missing where later ones say that they were
    removed for their age.
    """
    faults: list[AuditFault] = []
    named = [(f"head of {head.at_s:.0f}", head) for head in heads]
    if (folder / HEAD_FILE).exists():
        try:
            named.append((HEAD_FILE, AuditHead.load(folder / HEAD_FILE)))
        except AuditError as error:
            faults.append(AuditFault(HEAD_FILE, 0, str(error)))
    wanted = {head.number for _, head in named}
    hashes: dict[int, str] = {}  # hashes of the records that heads name
    records = 0
    removed: dict[int, str] = {}  # last number of a removed segment → its hash
    number, before = 0, ""
    segments = segments_of(folder)
    first = int(segments[0].stem) if segments else 0
    first_before = ""
    for place, segment in enumerate(segments):
        lines = _lines(segment)
        data_ends = segment.read_bytes()[-1:] in (b"", b"\n")
        for line_number, line in enumerate(lines, 1):
            is_last = place == len(segments) - 1 and line_number == len(lines)
            if is_last and not data_ends:
                faults.append(AuditFault(segment.name, line_number, "the last record is incomplete"))
                break
            try:
                record = AuditRecord.from_line(line)
            except ValueError as error:
                faults.append(AuditFault(segment.name, line_number, f"is not a record: {error}"))
                number, before = number + 1, ""
                continue
            if number == 0:
                first_before = record.before
                if record.number != first:
                    faults.append(AuditFault(segment.name, 1, f"record {record.number} where {first} was expected"))
            elif record.number != number + 1:
                faults.append(AuditFault(segment.name, line_number, _order(record.number, number + 1)))
            elif before and record.before != before:
                faults.append(
                    AuditFault(segment.name, line_number, f"record {record.number} does not follow record {number}")
                )
            if _hash(record.body()) != record.hash:
                faults.append(AuditFault(segment.name, line_number, f"record {record.number} was changed"))
            number, before = record.number, record.hash
            records += 1
            if number in wanted:
                hashes[number] = before
            if record.action == "audit.remove" and record.who == "audit":
                removed[record.details.get("last", 0)] = str(record.details.get("hash", ""))
    if segments and first_before != FIRST and removed.get(first - 1) != first_before:
        faults.append(AuditFault(segments[0].name, 0, f"the records before {first} are missing, and none says why"))
    if number >= first - 1 + HEAD_EVERY and not (folder / HEAD_FILE).exists():
        faults.append(AuditFault(HEAD_FILE, 0, "is missing"))
    faults += _check_heads(named, public_key, hashes, number)
    return Verification(records, first, number, before, tuple(faults))


def _check_heads(
    named: list[tuple[str, AuditHead]], public_key: bytes | None, hashes: Mapping[int, str], last: int
) -> list[AuditFault]:
    faults: list[AuditFault] = []
    if public_key is None and named:
        with contextlib.suppress(ValueError):
            public_key = base64.b64decode(named[0][1].public_key, validate=True)
    for name, head in named:
        if public_key is None or not head.is_signed_by(public_key):
            whose = key_id(public_key) if public_key is not None else "this log"
            faults.append(AuditFault(name, 0, f"is not signed by the key of {whose}"))
        elif head.number > last:
            faults.append(AuditFault(name, 0, f"records {last + 1} to {head.number} are missing at the end"))
        elif head.number and hashes.get(head.number, head.hash) != head.hash:
            faults.append(AuditFault(name, 0, f"record {head.number} is not the one that was signed"))
    return faults


def _order(found: int, expected: int) -> str:
    if found > expected:
        missing = f"record {expected} is" if found == expected + 1 else f"records {expected} to {found - 1} are"
        return f"{missing} missing or moved: record {found} is here"
    return f"record {found} was moved or added: record {expected} was expected"


def _lines(segment: Path) -> list[bytes]:
    data = segment.read_bytes()
    return data.rstrip(b"\n").split(b"\n") if data.strip(b"\n") else []


def make_record(number: int, before: str, at_s: float, action: str, fields: AuditFields) -> AuditRecord:
    """Return a record with its hash, `before` being that of the record before it; its texts are cut and printable."""
    record = AuditRecord(
        number=number,
        at_s=round(at_s, 3),
        action=_text(action),
        who=_text(fields["who"]),
        subject=_text(fields.get("subject", "")),
        address=_text(fields.get("address", "")),
        details=_details(fields.get("details") or {}),
        before=before,
    )
    return dataclasses.replace(record, hash=_hash(record.body()))


# --- values -----------------------------------------------------------------------------------------------------------


def _canonical(plain: Mapping[str, Any]) -> bytes:
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _hash(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def _text(text: str) -> str:
    return printable(text[:MAX_TEXT_CHARS])[:MAX_TEXT_CHARS]


def _details(details: Mapping[str, Any]) -> dict[str, Any]:
    """Return details as JSON has them, texts cut; what is too large is named instead."""
    plain: dict[str, Any] = json.loads(json.dumps(dict(details), default=str), parse_constant=str)
    shown: dict[str, Any] = _shown(plain)
    size_bytes = len(_canonical(shown))
    if size_bytes > MAX_DETAILS_BYTES:
        return {"cut": f"details of {size_bytes} bytes", "keys": sorted(shown)[:20]}
    return shown


def _shown(value: Any) -> Any:
    match value:
        case str():
            return _text(value)
        case dict():
            return {_text(key): _shown(one) for key, one in value.items()}
        case list():
            return [_shown(one) for one in value]
        case _:
            return value
