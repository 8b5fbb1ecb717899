"""The cloud's folder: keys, tokens, authority, repositories, files and databases, made at first start."""

import contextlib
import functools
import json
import logging
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

from walle.access.access import ANY_SCENARIO, Access, Role
from walle.access.access_file import AccessFile, UnknownTokenError
from walle.access.audit import AuditStore
from walle.access.audit_folder import AuditLog
from walle.access.ended_sessions import SESSION_S, EndedSessions
from walle.access.identity.authority import Authority
from walle.access.identity.store import IdentityStore
from walle.base.clock import Clock, SystemClock
from walle.base.durable_file import make_folders, remove_unfinished, write_file
from walle.cloud.folder.file_places import open_store
from walle.cloud.folder.state_place import read_database
from walle.deploy.exclusive_files.groups import GroupFiles, GroupKey
from walle.deploy.exclusive_files.store import ExclusiveStore
from walle.deploy.git.repo import TaskRepos
from walle.deploy.policies.uploaded_attributes import UploadedAttributes
from walle.deploy.releases.journal import read_releases
from walle.deploy.releases.release import Release
from walle.deploy.releases.signatures import Signatures
from walle.deploy.shared_files.coded_files import CodedFiles
from walle.deploy.shared_files.file_address import FileAddresses
from walle.deploy.shared_files.store import FileStore
from walle.errors import ConfigError
from walle.trust.folder import TrustFolder, prepare_trust
from walle.trust.signing import Signer

if TYPE_CHECKING:
    from walle.store.sync_database import SyncDatabase

_LOG = logging.getLogger(__name__)


_HURRY_S = 2.0  # less than HTTP waits for requests when it stops
EDGES = "edges"  # the name of the token of edge gateways


class CloudHome:
    """Layout of a cloud's folder:

        offline-keys/       sign what may run: to be moved away (walle.trust.folder)
        keys/               the online keys         trust/              signed metadata of all keys, public
        signatures/         of versions             epoch               of serials, after a restore
        keys/audit.pem      signs heads of the log  audit/              who did what, hash-chained
        keys/files.json     signs addresses of files
        keys/group-files.key  encrypts exclusive files of groups
        keys/edge.key       marks requests of edge gateways  keys/edge.token  with which they follow the releases
        keys/dashboard.key  seals sessions of the dashboard and read-only links
        ended-sessions.json  of the dashboard, by logout
        access.toml         tokens' hashes          admin.token         the first of them, for its owner to take away
        groups.toml         groups of scenarios     authority/          the servers' certificate authority
        identity/           keys that make devices' identities, for the identity node alone
        repos/              task repositories       files/              what /cdn serves
        attributes.toml     attributes of devices that rules of releases may name, written by the cloud's owner
        attributes/         tables of those that are uploaded
        cloud-files/        what only the cloud's phases read
        files.toml          the bucket in which both lie instead (walle.cloud.folder.file_places)
        releases.db  monitor.db  uploads.db  devices.db  identities.db
        exclusive.db        files of single devices, sealed to their keys, and of groups, encrypted
        database.toml       the database that has all of these and the audit log instead, uploads where it is told to

    `prepare` makes what is absent; the nodes only read keys and tokens. `database` is the URL of the database, with a
    password if need be; that of database.toml if empty.
    """

    def __init__(self, folder: Path, *, database: str = "") -> None:
        self.folder = folder
        self._database = database
        self.attributes = folder / "attributes.toml"  # written by the cloud's owner
        self.releases_db = folder / "releases.db"
        self.monitor_db = folder / "monitor.db"
        self.uploads_db = folder / "uploads.db"
        self.devices_db = folder / "devices.db"
        self.identities_db = folder / "identities.db"
        self.exclusive_db = folder / "exclusive.db"
        self.identity_folder = folder / "identity"
        self.inference_folder = folder / "inference"

    def prepare(self, scenarios: tuple[str, ...] = ()) -> None:
        """Make keys, tokens and repositories that are not there yet. Call it once, before any node starts."""
        make_folders(self.folder, mode=0o700)  # uploads.db holds what users did
        keys = self.folder / "keys"
        make_folders(keys, mode=0o700)
        for folder in (self.folder, keys, self.folder / "files", self.folder / "cloud-files"):
            remove_unfinished(folder)
        if not (keys / "audit.pem").exists():
            Signer.generate().save(keys / "audit.pem")
        if not (self.folder / "access.toml").exists():
            access = Access()
            token = access.issue("admin", {ANY_SCENARIO: Role.ADMIN})
            write_file(self.folder / "admin.token", f"{token}\n")
            access.save(self.folder / "access.toml")
        self.uploaded.prepare()
        GroupKey(keys / "group-files.key")  # made once, before two gateways could
        if self.access.rename_roles():
            _LOG.info("access.toml has the names that roles have now: reader, author, releaser, admin")
        if not self._dashboard_key.exists():
            write_file(self._dashboard_key, f"{secrets.token_hex(32)}\n", mode=0o600)
        self.access.keep_spare()
        for scenario in scenarios:
            self.repos.create(scenario)
        for store in (self.files, self.cloud_files):
            store.check()
        prepare_trust(self.trust, self.repos.scenarios(), SystemClock())

    @property
    def database_url(self) -> str:
        """The URL of the database that has the cloud's state, empty where it is in files of the folder."""
        return self._database or read_database(self.folder)

    @functools.cached_property
    def database(self) -> "SyncDatabase":
        """The database, for code that blocks. Only where there is a `database_url`."""
        from walle.store.sync_database import SyncDatabase

        return SyncDatabase(self.database_url)

    def hurry(self, limit_s: float = _HURRY_S) -> None:
        """End in `limit_s` what waits for the database here, such as a record of the audit log: it is closed next."""
        if "database" in self.__dict__:
            self.database.hurry(limit_s)

    def close(self) -> None:
        """Close the connections to the database; a later use opens them again."""
        if "database" in self.__dict__:
            self.database.close()

    @functools.cached_property
    def audit(self) -> AuditStore:
        """The audit log. Several processes may append to it at once."""

        def sign(data: bytes) -> tuple[bytes, bytes]:
            path = self.folder / "keys" / "audit.pem"
            if not path.exists():  # a cloud that was restored without keys, and not started yet; the log's lock is held
                make_folders(path.parent, mode=0o700)
                Signer.generate().save(path)
            return Signer.load(path).sign_audit_head(data)

        if self.database_url:
            from walle.access.postgres_audit import PostgresAuditLog

            return PostgresAuditLog(self.database, SystemClock(), sign, place=read_database(self.folder) or "database")
        return AuditLog(self.folder / "audit", SystemClock(), sign)

    def releases(self) -> list[Release]:
        """Return the releases of the journal, which another process may write. Raises ConfigError, StateError."""
        if not self.database_url:
            return read_releases(self.releases_db)
        rows = self.database.read("SELECT release FROM walle.releases ORDER BY number")
        return [Release.from_plain(json.loads(text)) for (text,) in rows]

    @property
    def trust(self) -> TrustFolder:
        """Keys and metadata of the fleet."""
        return TrustFolder(self.folder)

    @property
    def trusted_keys(self) -> dict[str, Any]:
        """The root metadata with which a device trusts this cloud."""
        root: dict[str, Any] = json.loads(self.trust.root().data)
        return root

    @property
    def signatures(self) -> Signatures:
        """Signatures of task versions."""
        return Signatures(self.folder / "signatures", self.trust)

    @functools.cached_property
    def access(self) -> AccessFile:
        return AccessFile(self.folder / "access.toml")

    @property
    def _dashboard_key(self) -> Path:
        return self.folder / "keys" / "dashboard.key"

    def prepare_edges(self) -> None:
        """Make the key and the token of edge gateways. Call it once, before any of them starts.

        The token is that of the name `edges`; one that was revoked is made again.
        """
        if not self._edge_key.exists():
            write_file(self._edge_key, f"{secrets.token_hex(32)}\n", mode=0o600)
        if not self._edge_token.exists() or self.access.identify(self.edge_token) is None:
            with contextlib.suppress(UnknownTokenError):
                self.access.revoke(EDGES)
            write_file(self._edge_token, f"{self.access.add(EDGES, {ANY_SCENARIO: Role.READER})}\n", mode=0o600)

    @property
    def _edge_key(self) -> Path:
        return self.folder / "keys" / "edge.key"

    @property
    def _edge_token(self) -> Path:
        return self.folder / "keys" / "edge.token"

    @property
    def edge_key(self) -> bytes:
        """The key that marks requests of edge gateways. Raises ConfigError."""
        return _read_secret(self._edge_key, "remove it and start the cloud again").encode()

    @property
    def edge_token(self) -> str:
        """The token with which edge gateways follow the releases. Raises ConfigError."""
        return _read_secret(self._edge_token, "remove it and start the cloud again")

    def dashboard_key(self) -> bytes:
        """Return the key of the dashboard's sessions. Those of one gateway are of all.

        Raises:
            ConfigError: the key is damaged.
        """
        try:
            key = bytes.fromhex(self._dashboard_key.read_text().strip())
        except (OSError, ValueError) as error:
            what = "cannot be read; remove it and start the cloud again, then everyone logs in again"
            raise ConfigError(f"{self._dashboard_key}: {what}") from error
        if len(key) < 32:
            raise ConfigError(f"{self._dashboard_key}: is too short; remove it and start the cloud again")
        return key

    def ended_sessions(self, clock: Clock) -> EndedSessions:
        """Return the sessions of the dashboard that have ended by logout, for all gateways."""
        return EndedSessions(self.folder / "ended-sessions.json", clock, session_s=SESSION_S)

    @property
    def admin_token(self) -> str:
        return (self.folder / "admin.token").read_text().strip()

    @functools.cached_property
    def exclusive(self) -> ExclusiveStore:
        """The store of exclusive files. Several processes may use it at once.

        The first use blocks, and moves a file of a version before to the database.
        """
        if not self.database_url:
            return ExclusiveStore.in_file(self.exclusive_db).open()
        self.move_left_file(self.exclusive_db)
        return ExclusiveStore(self.database).open()

    @functools.cached_property
    def group_files(self) -> GroupFiles:
        """Exclusive files of groups, in the same store. Several processes may use them at once."""
        return GroupFiles(self.exclusive, lambda: GroupKey(self.folder / "keys" / "group-files.key"))

    @functools.cached_property
    def uploaded(self) -> UploadedAttributes:
        """The tables of uploaded attributes. Each process reads them for itself."""
        return UploadedAttributes(self.folder / "attributes")

    def identities(self, clock: Clock | None = None) -> IdentityStore:
        """Return the open store of devices' identities, for an administrator here.

        Raises:
            IdentityStoreError: it cannot be opened.
            ConfigError: it is in a file that was not moved to the database yet.
        """
        if self.database_url and self.identities_db.exists():
            raise ConfigError(
                f"{self.identities_db} is not in the cloud's database yet; start the cloud with this version of walle,"
                " which moves it"
            )
        return self.identity_store(clock).open()

    def identity_store(self, clock: Clock | None = None) -> IdentityStore:
        """Return the store of devices' identities, not open yet."""
        if not self.database_url:
            return IdentityStore.in_file(self.identities_db, clock=clock)
        return IdentityStore(self.database, clock)

    @property
    def is_of_a_cloud(self) -> bool:
        """True where a cloud was started on the folder."""
        return (self.folder / "access.toml" if self.database_url else self.identities_db).exists()

    def move_left_file(self, path: Path) -> None:
        """Move a file of a version before to the database, where there are both; see `walle.cloud.folder.left_files`.

        Raises:
            ConfigError, DatabaseError: as `walle.cloud.folder.left_files.move_left_file`; nothing was moved.
        """
        if not self.database_url or not path.exists():
            return
        from walle.cloud.folder.left_files import move_left_file
        from walle.store.postgres_database import without_password

        if counts := move_left_file(path, self.database):
            subject = without_password(self.database_url)
            self.audit.append("cloud.move_state", who="cloud", subject=subject, details=dict(counts))

    @property
    def authority_certificate(self) -> Path:
        """The certificate by which clients trust this cloud's servers."""
        return self.folder / "authority" / "ca.pem"

    def authority(
        self, names: tuple[str, ...] = (), *, clock: Clock | None = None, server: str = "server"
    ) -> Authority:
        return Authority(self.folder / "authority", hosts=names, clock=clock, server=server)

    @functools.cached_property
    def repos(self) -> TaskRepos:
        return TaskRepos(self.folder / "repos")

    @functools.cached_property
    def files(self) -> FileStore:
        return open_store(self.folder, "files")

    @functools.cached_property
    def coded_files(self) -> CodedFiles:
        """Smaller forms of `files`, which can be made again."""
        return CodedFiles(self.folder / "coded-files", self.files)

    @functools.cached_property
    def file_addresses(self) -> FileAddresses:
        """Addresses of shared files, relative: a device takes them from the gateway that it knows."""
        return FileAddresses(self.folder / "keys" / "files.json")

    @functools.cached_property
    def cloud_files(self) -> FileStore:
        """Files of versions that no device gets: nothing serves them."""
        return open_store(self.folder, "cloud-files")


def _read_secret(path: Path, remedy: str) -> str:
    try:
        text = path.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); {remedy}") from error
    if len(text) < 32:
        raise ConfigError(f"{path}: is too short; {remedy}")
    return text
