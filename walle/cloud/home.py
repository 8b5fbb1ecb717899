"""The cloud's folder: keys, tokens, authority, repositories, files and databases, made at first start."""

import functools
import hmac
import secrets
from pathlib import Path

from walle.clock import Clock, SystemClock
from walle.cloud.authority import Authority
from walle.deploy.cloud.access import ANY_SCENARIO, Access, Role
from walle.deploy.cloud.audit import AuditLog
from walle.deploy.cloud.files import FileStore
from walle.deploy.cloud.repo import TaskRepos
from walle.deploy.signing import Signer, TrustedKeys
from walle.durable_file import make_folders, remove_unfinished, write_file


class CloudHome:
    """Layout of a cloud's folder:

        keys/bundle.pem     signs versions          keys/release.pem    chooses among them
        keys/audit.pem      signs heads of the log  audit/              who did what, hash-chained
        access.toml         tokens' hashes          admin.token         the first of them, for its owner to take away
        device.token        lets devices in         authority/          the tunnel's certificate authority
        repos/              task repositories       files/              what /cdn serves
        cloud-files/        what only the cloud's phases read
        releases.db  monitor.db  uploads.db  devices.db

    `prepare` makes what is absent; the nodes only read keys and tokens.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.releases_db = folder / "releases.db"
        self.monitor_db = folder / "monitor.db"
        self.uploads_db = folder / "uploads.db"
        self.devices_db = folder / "devices.db"
        self.inference_folder = folder / "inference"

    def prepare(self, scenarios: tuple[str, ...] = ()) -> None:
        """Make keys, tokens and repositories that are not there yet. Call it once, before any node starts."""
        make_folders(self.folder, mode=0o700)  # uploads.db holds what users did
        keys = self.folder / "keys"
        make_folders(keys, mode=0o700)
        for folder in (self.folder, keys):
            remove_unfinished(folder)
        for name in ("bundle", "release", "audit"):
            if not (keys / f"{name}.pem").exists():
                Signer.generate().save(keys / f"{name}.pem")
        if not (self.folder / "access.toml").exists():
            access = Access()
            token = access.issue("admin", {ANY_SCENARIO: Role.RELEASE})
            write_file(self.folder / "admin.token", f"{token}\n")
            access.save(self.folder / "access.toml")
        if not (self.folder / "device.token").exists():
            write_file(self.folder / "device.token", f"{secrets.token_urlsafe(24)}\n")
        for scenario in scenarios:
            self.repos.create(scenario)

    @functools.cached_property
    def bundle_signer(self) -> Signer:
        return Signer.load(self.folder / "keys" / "bundle.pem")

    @functools.cached_property
    def release_signer(self) -> Signer:
        return Signer.load(self.folder / "keys" / "release.pem")

    @functools.cached_property
    def audit(self) -> AuditLog:
        """The audit log. Several processes may append to it at once."""

        def sign(data: bytes) -> tuple[bytes, bytes]:
            path = self.folder / "keys" / "audit.pem"
            if not path.exists():  # a cloud that was restored without keys, and not started yet; the log's lock is held
                make_folders(path.parent, mode=0o700)
                Signer.generate().save(path)
            return Signer.load(path).sign_audit_head(data)

        return AuditLog(self.folder / "audit", SystemClock(), sign)

    @property
    def trusted_keys(self) -> TrustedKeys:
        """The keys with which a device trusts this cloud."""
        return TrustedKeys.of(self.bundle_signer, self.release_signer)

    @property
    def access(self) -> Access:
        return Access.load(self.folder / "access.toml")

    @property
    def admin_token(self) -> str:
        return (self.folder / "admin.token").read_text().strip()

    @functools.cached_property
    def device_token(self) -> str:
        return (self.folder / "device.token").read_text().strip()

    def lets_in(self, token: str) -> bool:
        """Say whether `token` lets a device in."""
        return hmac.compare_digest(token.encode(), self.device_token.encode())

    def authority(self, names: tuple[str, ...] = (), *, clock: Clock | None = None) -> Authority:
        return Authority(self.folder / "authority", hosts=names, clock=clock)

    @functools.cached_property
    def repos(self) -> TaskRepos:
        return TaskRepos(self.folder / "repos")

    @functools.cached_property
    def files(self) -> FileStore:
        return FileStore(self.folder / "files")

    @functools.cached_property
    def cloud_files(self) -> FileStore:
        """Files of versions that no device gets: nothing serves them."""
        return FileStore(self.folder / "cloud-files")
