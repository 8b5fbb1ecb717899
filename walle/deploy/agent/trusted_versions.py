"""Installed versions of a device, read with what their signatures and hashes prove."""

import contextlib
from collections import defaultdict
from pathlib import Path

from walle.deploy.agent.coded_file import Base
from walle.deploy.agent.installed import CorruptedError, InstalledTasks, TaskState, VersionRef, verify_files
from walle.deploy.agent.pull import KeptFiles
from walle.deploy.agent.trust import DeviceTrust
from walle.protocol import Manifest
from walle.trust.signing import SignatureError


class TrustedVersions:
    """Reads the versions in `installed` that the keys of `trust` signed. Its methods read the disk, and block."""

    def __init__(self, installed: InstalledTasks, trust: DeviceTrust) -> None:
        self._installed = installed
        self._trust = trust

    def load(self, task: str, ref: VersionRef, *, to_install: bool = False) -> Manifest:
        """Return the manifest of an installed version. Raises CorruptedError unless it is signed and intact.

        `to_install`: a directive asks for it, so that it must be signed by the present keys.
        """
        verify = self._trust.verify_manifest if to_install else self._trust.verify_installed
        try:
            manifest = verify(self._installed.envelope(task, ref))
        except SignatureError as error:
            raise CorruptedError(self._installed.version_files(task, ref), str(error)) from error
        if (manifest.name, manifest.version) != (task, ref.version):
            reason = f"its manifest is of {manifest.name} {manifest.version}"
            raise CorruptedError(self._installed.version_files(task, ref), reason)
        verify_files(self._installed.version_files(task, ref), manifest)
        return manifest

    def kept_files(self, state: TaskState) -> KeptFiles:
        """Return the files of the installed versions. They are verified when used, not here."""
        by_sha256: defaultdict[str, list[Path]] = defaultdict(list)
        by_path: dict[str, Base] = {}
        for ref in (state.active, state.previous):
            with contextlib.suppress(CorruptedError, SignatureError):
                if ref is not None:
                    manifest = self._trust.verify_installed(self._installed.envelope(state.task, ref))
                    folder = self._installed.version_files(state.task, ref)
                    for entry in manifest.files:
                        by_sha256[entry.sha256].append(folder / entry.path)
                        if ref is state.active:
                            by_path[entry.path] = Base(entry.sha256, folder / entry.path, entry.size_bytes)
        return KeptFiles(dict(by_sha256), by_path)
