"""Calibrated rates of this machine's backends (P of eq. 3, §4.1), kept in a file in the user's cache folder.

The file may have performance models too (§4.2 of Mulder et al.), which give the costs of most convolutions. Sessions
use the file's rates and models for this CPU, backend and engine version. For other backends the engine has rates that
are shipped for the CPU's family, or computed by a formula; it never measures by itself. Only `save` writes the file,
and only `walle model calibrate` calls it.
"""

import functools
import logging
import os
from pathlib import Path
from typing import Any

from walle.engine_ext import _core
from walle.engine_ext.errors import BackendError

_LOG = logging.getLogger(__name__)
_FORMAT = 1
_MODELS = "models"  # key of an entry's performance models, base64 by backend
_MOST_CPUS = 16  # a home folder may serve several machines; the file stays small

type Rates = dict[str, dict[str, float]]  # backend → rate → operations or bytes per microsecond
type Models = dict[str, bytes]  # backend → performance model (search/portable_model.py)


def cache_path() -> Path:
    """Return the file of this user's rates, below $XDG_CACHE_HOME if that is an absolute path, else below ~/.cache.

    Raises:
        RuntimeError: the user has no home folder.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "walle" / "rates.json"


def cpu_model() -> str:
    """Return the CPU's model name, as the system reports it."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                key, _, value = line.partition(":")
                if key.strip() == "model name":
                    return value.strip()
    except OSError:
        pass
    import platform

    return platform.processor() or platform.machine()


def _version() -> str:
    from walle import __version__

    return __version__


def identity() -> dict[str, str]:
    """Return what rates are valid for: the CPU's model name and the engine's version."""
    return {"cpu": cpu_model(), "engine": _version()}


def read(path: Path) -> Rates:
    """Return the file's rates for this CPU and engine version; an empty dict if there is no file.

    Raises:
        ValueError: the file cannot be read, or is not in the format that `save` writes.
    """
    return next((entry["rates"] for entry in _entries(path) if _mine(entry)), {})


def read_every(path: Path) -> dict[str, Rates]:
    """Return the file's rates by CPU, of whatever engine version; an empty dict if there is no file.

    Raises:
        ValueError: the file cannot be read, or is not in the format that `save` writes.
    """
    return {entry["cpu"]: entry["rates"] for entry in _entries(path)}


def read_models(path: Path) -> Models:
    """Return the file's performance models for this CPU and engine version; an empty dict if there is none.

    Raises:
        ValueError: the file cannot be read, or is not in the format that `save` writes.
    """
    return next((_models(entry) for entry in _entries(path) if _mine(entry)), {})


def read_portable(path: Path, *, any_cpu: bool) -> tuple[Rates, Models]:
    """Return rates and models in a file of another machine whose CPU has this one's name, or any name with `any_cpu`.

    Raises:
        ValueError: the file cannot be read, has a broken model, or no rates for this CPU and engine version.
    """
    entries = _entries(path)
    fitting = [entry for entry in entries if entry["engine"] == _version()]
    if not fitting:
        versions = ", ".join(sorted({entry["engine"] for entry in entries})) or "none"
        raise ValueError(f"its rates are for engine version {versions}, and this is {_version()}: measure them again")
    chosen = [entry for entry in fitting if _mine(entry)] or (fitting if any_cpu else [])
    if not chosen:
        cpus = ", ".join(entry["cpu"] for entry in fitting)
        raise ValueError(
            f"its rates are for {cpus}, and this is {cpu_model()}: measure here with walle model calibrate, or use them"
            " anyway with --force"
        )
    rates: Rates = chosen[0]["rates"]
    if any(one.keys() != _core.rates("scalar").keys() for one in rates.values()):
        raise ValueError("its rates do not have this engine's names; measure them again")
    models = _models(chosen[0])
    for backend, model in models.items():
        try:
            _core.predicted_times(model, [[1] * 5])
        except BackendError as error:
            raise ValueError(f"{backend}: {error}") from error
    return rates, models


def _mine(entry: dict[str, Any]) -> bool:
    return all(entry[key] == value for key, value in identity().items())


def _entries(path: Path) -> list[dict[str, Any]]:
    import json

    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from error
    try:
        content = json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(content, dict) or content.get("format") != _FORMAT or not isinstance(content.get("cpus"), list):
        raise ValueError(f"it is not a rates file of format {_FORMAT}")
    for entry in content["cpus"]:
        _check(entry)
    return list(content["cpus"])


def _check(entry: Any) -> None:
    fits = isinstance(entry, dict) and isinstance(entry.get("cpu"), str) and isinstance(entry.get("engine"), str)
    rates = entry.get("rates") if fits else None
    if not isinstance(rates, dict) or not all(
        isinstance(one, dict) and all(type(rate) in {int, float} and 0 < rate < 1e18 for rate in one.values())
        for one in rates.values()
    ):
        raise ValueError("an entry is not a CPU and an engine version with positive rates")
    models = entry.get(_MODELS, {})
    if not isinstance(models, dict) or not all(isinstance(text, str) for text in models.values()):
        raise ValueError("the performance models of an entry are not texts by backend")


def _models(entry: dict[str, Any]) -> Models:
    import binascii

    try:
        return {name: binascii.a2b_base64(text, strict_mode=True) for name, text in entry.get(_MODELS, {}).items()}
    except ValueError as error:
        raise ValueError(f"a performance model is not base64: {error}") from error


def save(rates: Rates, path: Path, models: Models | None = None) -> None:
    """Write the rates of this CPU to the file, atomically; entries of other CPUs of this engine version are kept.

    So are this CPU's performance models, unless `models` replaces them. A broken file is replaced, with a warning:
    rates of other CPUs in it are lost.

    Raises:
        OSError: the file cannot be written.
    """
    import binascii
    import json

    from walle.base.durable_file import write_file

    try:
        known = _entries(path)
    except ValueError as error:
        _LOG.warning("%s is replaced, with the rates of other CPUs in it: %s", path, error)
        known = []
    others = [entry for entry in known if entry["engine"] == _version() and not _mine(entry)]
    texts: dict[str, str]
    if models is None:
        texts = next((entry.get(_MODELS, {}) for entry in known if _mine(entry)), {})
    else:
        texts = {name: binascii.b2a_base64(model, newline=False).decode() for name, model in models.items()}
    mine: dict[str, Any] = {**identity(), "rates": rates} | ({_MODELS: texts} if texts else {})
    content = {"format": _FORMAT, "cpus": [mine, *others][:_MOST_CPUS]}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, json.dumps(content, indent=1))


@functools.cache
def use_saved() -> None:
    """Set the rates and models saved for this machine, once per process; ignore a broken file with a warning."""
    try:
        path = cache_path()
    except RuntimeError as error:  # the user has no home folder
        _LOG.debug("no saved rates are used: %s", error)
        return
    if not os.path.lexists(path):
        return
    available = {name for name, has, _ in _core.backends() if has}
    try:
        for backend, rates in read(path).items():
            if backend in available:
                _core.set_rates(backend, rates)
    except (ValueError, BackendError) as error:
        _LOG.warning("%s is ignored: %s; write a new one with: walle model calibrate", path, error)
        return
    try:
        models = read_models(path)
    except ValueError as error:
        _LOG.warning("the performance models in %s are ignored: %s", path, error)
        return
    for backend, model in models.items():
        try:
            if backend in available:
                _core.set_performance_model(backend, model)
        except BackendError as error:
            _LOG.warning("the performance model of %s in %s is ignored: %s", backend, path, error)
