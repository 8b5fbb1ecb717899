"""Learned search (Mulder et al.): accuracy of the performance model, transfer, and selection for six networks.

The samples of two backends, files of `walle model profile-primitives`, are read from FOLDER/BACKEND.jsonl, or measured
for --minutes each where there are none. A tenth of them is for the tests. Rows: the pick regret (the time of the
primitive that is predicted to be the fastest, over the fastest one's) and the median relative error of our model, of
the same network on the paper's five raw inputs, of a line in logs and of boosted trees; transfer by few samples from
the first backend to the second; and for each network the time of model and PBQP, of profiling its layers in this run,
and the excess of the selection by predicted times: in the measured times of its primitives, and in latencies of the
whole network, runs of which take turns with those of the measured selection and of the plan that a session makes by
itself. A picture and a page are written to out/.

    walle figures search -- [FOLDER] [--backends avx512,avx2] [--minutes 15] [--json]
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402  # the path must be set first

from benchmarks.headline import print_headline  # noqa: E402
from benchmarks.primitives import report as reports  # noqa: E402
from benchmarks.primitives.accuracy import ALL, Regret, median_errors, regret  # noqa: E402
from benchmarks.primitives.data import Data, samples  # noqa: E402
from benchmarks.primitives.networks import NETWORKS  # noqa: E402
from benchmarks.primitives.selection import Selected, profiled, select  # noqa: E402
from benchmarks.primitives.transfer import FRACTIONS, transfers  # noqa: E402
from walle.engine_ext import rates  # noqa: E402
from walle.engine_ext.search.baselines import LinearModel, TreeModel  # noqa: E402
from walle.engine_ext.search.profiling import RUNS  # noqa: E402
from walle.search import PerformanceModel  # noqa: E402

_OURS, _RAW, _LINEAR, _TREE = "ours", "network, raw inputs", "Linear", "Tree"


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def _models(train: Data, seed: int) -> dict[str, Any]:
    """Return the trained models: ours, the paper's on raw inputs, and the baselines."""
    fits: dict[str, Callable[[], Any]] = {
        _OURS: lambda: PerformanceModel.fit(train.layers, train.times, seed=seed, primitives=list(train.primitives)),
        _RAW: lambda: PerformanceModel.fit(train.layers, train.times, seed=seed, features="raw"),
        _LINEAR: lambda: LinearModel.fit(train.layers, train.times, seed=seed),
        _TREE: lambda: TreeModel.fit(train.layers, train.times, seed=seed),
    }
    found = {}
    for name, fit in fits.items():
        _progress(f"training: {name}")
        found[name] = fit()
    return found


def accuracy(models: dict[str, Any], test: Data) -> tuple[dict[str, Regret], dict[str, dict[str, float]]]:
    predictions = {name: np.asarray(model.predict(test.layers), float) for name, model in models.items()}
    return (
        {name: regret(predicted, test) for name, predicted in predictions.items()},
        {name: median_errors(predicted, test) for name, predicted in predictions.items()},
    )


def selections(names: list[str], backend: str, model: PerformanceModel, data: Data, runs: int) -> list[Selected]:
    rates.use_saved()  # set before the first network is profiled: one condition for all
    found = []
    for name in names:
        _progress(f"profiling the layers of {name}")
        network = NETWORKS[name]()
        measured, seconds = profiled(network.layers, backend, runs)
        found.append(select(name, network, model, data.primitives, measured, seconds, backend))
    return found


def _exact_backends() -> list[str]:
    from walle.engine_ext import _core

    return [name for name, available, exact in _core.backends() if available and exact][:-3:-1]


def _names(text: str, known: list[str], what: str) -> list[str]:
    names = text.split(",") if text else known
    if unknown := sorted(set(names) - set(known)):
        sys.exit(f"search: no {what} {', '.join(unknown)}; known are: {', '.join(known)}")
    return names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "build" / "primitives")
    parser.add_argument("--backends", default="", help="two, separated by commas; default: the last ones of this CPU")
    parser.add_argument("--minutes", type=float, default=15, help="for profiling a backend (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=0, help="use this many samples at most; 0: all")
    parser.add_argument("--networks", default="", help="separated by commas; default: all six; none: -")
    parser.add_argument("--fractions", default=",".join(map(str, FRACTIONS)), help="of transfer (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="draws of each fraction (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=RUNS, help="of each primitive of a network (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    names = [] if options.networks == "-" else _names(options.networks, list(NETWORKS), "network")
    backends = options.backends.split(",") if options.backends else _exact_backends()
    if len(backends) != 2:
        sys.exit("search: give two backends, such as --backends avx512,avx2")
    options.folder.mkdir(parents=True, exist_ok=True)
    sets = [samples(options.folder, backend, options.minutes) for backend in backends]
    first, second = (Data.of(one).first(options.layers or len(one.samples)) for one in sets)
    train, test = first.split(options.seed)
    models = _models(train, options.seed)
    regrets, errors = accuracy(models, test)
    common = [name for name in first.primitives if name in second.primitives]
    target, target_test = second.only(common).split(options.seed)
    fractions = [float(part) for part in options.fractions.split(",")]
    moved = transfers(
        train.only(common), target, target_test, fractions=fractions, repeats=options.repeats, seed=options.seed,
        on_done=_progress,
    )  # fmt: skip
    networks = selections(names, backends[0], models[_OURS], first, options.runs)
    _progress("")
    facts = {
        "machine": sets[0].head.cpu,
        "engine": sets[0].head.engine,
        "samples": f"{backends[0]} {len(first)}, {backends[1]} {len(second)}",
        "primitives": f"{len(first.primitives)}: {', '.join(first.primitives)}",
    }
    found = reports.Report(facts, regrets, errors, {f"{backends[0]} to {backends[1]}": moved}, networks)
    text = reports.table(found)
    picture = ROOT / "out" / "search.png"
    reports.plot(found, picture)
    reports.page(text, f"{facts['machine']}; {facts['samples']}", picture, ROOT / "out" / "search.html")
    if options.json:
        print(json.dumps(reports.plain(found), indent=1))
        return
    print(text, f"picture: {picture}, page: {ROOT / 'out' / 'search.html'}", sep="\n")
    what = f"{backends[0]}, {len(test)} test layers"
    peers = {name: 100 * regrets[name].mean for name in (_RAW, _LINEAR, _TREE)}
    print_headline(f"mean pick regret, {what}", unit="%", better="lower", ours=100 * regrets[_OURS].mean, peers=peers)
    peers = {name: 100 * errors[name][ALL] for name in (_RAW, _LINEAR, _TREE)}
    print_headline(f"median error, {what}", unit="%", better="lower", ours=100 * errors[_OURS][ALL], peers=peers)


if __name__ == "__main__":
    main()
