"""A cloud in memory: signs versions, hands out directives, and serves files as a `Fetcher` that can be made to fail."""

import asyncio
import contextlib
import dataclasses
import hashlib
import json
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from walle.base.clock import ManualClock
from walle.deploy.agent.fetch import CodedAnswer, FetchError, HeldPart, WrongLengthError
from walle.protocol import Directive, FileEntry, Manifest, Timestamp, TriggerCondition
from walle.trust.folder import root_body, scenarios_body, sign_metadata
from walle.trust.metadata import ROLES, RoleKeys
from walle.trust.signing import Signer

CACHE_TAG = sys.implementation.cache_tag or ""
NEVER_S = 4_000_000_000
SCENARIOS = ("shop", "other", "s", "..")


def sha256_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def manifest_of(task: str, version: str, files: Mapping[str, bytes]) -> Manifest:
    scenario, _, name = task.partition("/")
    entries = tuple(FileEntry(path, sha256_of(data), len(data)) for path, data in files.items())
    return Manifest(
        scenario=scenario,
        task=name,
        version=version,
        commit="0" * 40,
        bytecode=(CACHE_TAG,),
        trigger=TriggerCondition(("page_exit",)),
        phases={"execute": "device"},
        limits={},
        files=entries,
    )


class CloudFiles:
    """Blobs by sha256, and the two keys. `pulls` lists what was asked for: (sha256, offset).

    Faults: `drops[sha256] = n` breaks the link once after n bytes; `longer` has sha256s that are served with a byte too
    many; `offline` refuses everything; while `gate` is cleared, every pull waits before its first byte.
    """

    def __init__(self) -> None:
        self.bundle_signer = Signer.generate()
        self.release_signer = Signer.generate()
        self.root_signer = Signer.generate()
        self.clock = ManualClock(1_699_000_000.0)  # clock of the metadata, which last for years
        self.fleet = f"fleet-{self.root_signer.key_id}"
        self.trust: dict[str, bytes] = {}  # metadata by name
        self.epoch = 1
        self.timestamp_life_s = NEVER_S
        signers = dict.fromkeys(ROLES, self.root_signer) | dict.fromkeys(ROLES[2:], self.release_signer)
        self.make_root(1, signers, [self.root_signer])
        role = RoleKeys.of([self.bundle_signer.public_key])
        self.make_scenarios(1, dict.fromkeys(SCENARIOS, role))
        self.blobs: dict[str, bytes] = {}
        self.pulls: list[tuple[str, int]] = []
        self.drops: dict[str, int] = {}
        self.longer: set[str] = set()
        self.offline = False
        self.chunk_bytes = 1000
        self.gate = asyncio.Event()
        self.gate.set()
        self.waiting = asyncio.Event()
        self._serial = 0

    @property
    def pinned(self) -> dict[str, Any]:
        """The root metadata for a join file."""
        root: dict[str, Any] = json.loads(self.trust["1.root.json"])
        return root

    def make_root(self, version: int, roles: Mapping[str, Signer], signers: Sequence[Signer], fleet: str = "") -> None:
        keys = {role: RoleKeys.of([signer.public_key]) for role, signer in roles.items()}
        self.root_version, self.roles = version, dict(roles)
        body = root_body(version, fleet or self.fleet, keys, self.clock)
        self.trust[f"{version}.root.json"] = sign_metadata(body, signers)

    def make_scenarios(self, version: int, delegations: Mapping[str, RoleKeys], signer: Signer | None = None) -> None:
        self.scenarios_version, self.delegations = version, dict(delegations)
        body = scenarios_body(version, delegations, self.clock)
        self.trust[f"{version}.scenarios.json"] = sign_metadata(body, [signer or self.roles["targets"]])

    def timestamp(self, now_s: float = 1_699_000_000.0, *, signer: Signer | None = None, **changes: Any) -> str:
        """Return X-Walle-Trust as the timestamp role signs it."""
        fields: dict[str, Any] = {
            "fleet": self.fleet,
            "epoch": self.epoch,
            "generation": 1,
            "floor": 1,
            "root": self.root_version,
            "scenarios": self.scenarios_version,
            "scenarios_sha256": sha256_of(self.trust[f"{self.scenarios_version}.scenarios.json"]),
            "time_s": int(now_s),
            "expires_s": int(min(now_s + self.timestamp_life_s, NEVER_S)),
        }
        made = Timestamp(**{**fields, **changes})
        return (signer or self.roles["timestamp"]).sign_timestamp(made).to_header()

    async def fetch_small(self, url: str, *, max_bytes: int) -> bytes:
        data = self.trust.get(url.removeprefix("/trust/"))
        if self.offline or data is None:
            raise FetchError(url, "no such file, or no network")
        if len(data) > max_bytes:
            raise WrongLengthError(url, f"more than {max_bytes} bytes")
        return data

    def publish(
        self,
        task: str,
        version: str,
        files: Mapping[str, bytes],
        *,
        change: Callable[[Manifest], Manifest] = lambda manifest: manifest,
        signer: Signer | None = None,
    ) -> Directive:
        """Put a version up and return a signed directive for it, newer than any before."""
        envelope = (signer or self.bundle_signer).sign_manifest(change(manifest_of(task, version, files))).to_bytes()
        sha256 = sha256_of(envelope)
        self.blobs |= {sha256_of(data): data for data in (envelope, *files.values())}
        return self.sign(
            Directive(
                task=task,
                version=version,
                manifest=sha256,
                size_bytes=len(envelope),
                serial=0,
                expires_s=NEVER_S,
                url="/cdn",
                release=f"r-{version}",
            )
        )

    def remove(self, task: str) -> Directive:
        return self.sign(
            Directive(task=task, version="", manifest="", size_bytes=0, serial=0, expires_s=NEVER_S, url="", release="")
        )

    def sign(self, directive: Directive, *, keep_serial: bool = False) -> Directive:
        """Return `directive` as the release key signs it now: with the next serial unless told to keep it."""
        if not keep_serial:
            self._serial += 1
            directive = dataclasses.replace(directive, serial=self._serial)
        directive = dataclasses.replace(directive, epoch=self.epoch)
        return self.roles["snapshot"].sign_directive(directive, self.fleet)

    @contextlib.asynccontextmanager
    async def fetch_coded(
        self, url: str, *, codings: Sequence[str], dictionary: str, held: HeldPart | None, max_bytes: int
    ) -> AsyncIterator[CodedAnswer]:
        """Give the file as it is: a server without coded files."""
        async with contextlib.aclosing(self.fetch(url, offset=0, size_bytes=max_bytes)) as chunks:
            yield CodedAnswer("", "", 0, chunks)

    async def fetch(self, url: str, *, offset: int, size_bytes: int) -> AsyncGenerator[bytes]:
        sha256 = url.removeprefix("/cdn/")
        self.pulls.append((sha256, offset))
        self.waiting.set()
        await self.gate.wait()
        if self.offline or sha256 not in self.blobs:
            raise FetchError(url, "no such file, or no network")
        data = self.blobs[sha256] + (b"!" if sha256 in self.longer else b"")
        stop = self.drops.pop(sha256, None)
        for start in range(offset, len(data), self.chunk_bytes):
            await asyncio.sleep(0)
            if stop is not None and start >= stop:
                raise FetchError(url, "the link dropped")
            if start + self.chunk_bytes > size_bytes and len(data) > size_bytes:
                raise WrongLengthError(url, "too long")
            yield data[start : start + self.chunk_bytes]
