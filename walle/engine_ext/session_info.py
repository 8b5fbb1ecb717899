"""Descriptions of sessions and modules: inputs and outputs, plans, backends."""

from typing import Any, NamedTuple

from walle.engine_ext import _core

_PEAK_SECONDS = 0.02


class TensorInfo(NamedTuple):
    """An input or output; fields and sizes that are None are known at run time only."""

    name: str
    shape: tuple[int | None, ...] | None
    dtype: str | None


class BackendInfo(NamedTuple):
    """An instruction set with its kernels, and whether this CPU has it.

    A backend that is not `exact` computes float32 products in fewer bits (avx512_bf16: operands of convolutions and
    matrix products are rounded to bfloat16, 8 significant bits, and summed in float32). "auto" never selects it: it
    must be named.
    """

    name: str
    available: bool
    exact: bool

    @property
    def peak_gflops(self) -> float:
        """Peak of one core in 10^9 float32 operations a second, measured at each access (20 ms); 0 if not available."""
        return _core.peak_gflops(self.name, _PEAK_SECONDS) if self.available else 0.0


class AlgorithmCost(NamedTuple):
    """The predicted time of an algorithm with its parameter (a Winograd unit, say), as search weighed it."""

    algorithm: str
    parameter: int
    predicted_us: float


class PlannedOp(NamedTuple):
    """One step of a plan: an atomic operator, "Raster" with its number of regions, or a node that is interpreted.

    `algorithm` is empty where the operator has only one; `candidates` are those that search weighed, the chosen first.
    """

    name: str
    op: str
    algorithm: str
    parameters: int
    predicted_us: float
    regions: int
    candidates: tuple[AlgorithmCost, ...]


class Plan(NamedTuple):
    """Steps of a session for one set of input shapes; `str(plan)` is a table.

    `costs` are the predicted microseconds on each backend that search could take (eq. 1 of the paper), and `source` is
    where the rates of the chosen one come from: "calibrated" (`walle model calibrate` measured this machine),
    "shipped: AMD Zen 4" (measured for this CPU's family) or "formula" (a CPU of a family that nobody measured). It is
    "learned, calibrated" where a performance model gave costs of convolutions; backends are then compared by rates,
    unless each has a model.
    `search_ms` is the time spent in weighing backends and algorithms, `plan_ms` in all of planning, packing of weights
    included.
    """

    backend: str
    search_ms: float
    costs: dict[str, float]
    source: str
    ops: tuple[PlannedOp, ...]
    rasters_made: int
    rasters_left: int
    arena_bytes: int
    plan_ms: float

    def __str__(self) -> str:
        width = max((len(op.name) for op in self.ops), default=4)
        lines = [f"{op.name:{width}}  {_described(op)}" for op in self.ops]
        costs = ", ".join(f"{name} {_shown(us)}" for name, us in self.costs.items())
        lines.append(
            f"backend {self.backend} (predicted: {costs}; source of costs: {self.source}), {len(self.ops)} steps, "
            f"rasters {self.rasters_made} before merging and {self.rasters_left} after, "
            f"arena {self.arena_bytes} bytes, planned in {self.plan_ms:.2f} ms, of which search {self.search_ms:.2f} ms"
        )
        return "\n".join(lines)


def _shown(us: float) -> str:
    return f"{us:.0f} µs" if us >= 1 else "< 1 µs"


def _described(op: PlannedOp) -> str:
    text = f"{op.op}, {op.regions} regions" if op.regions > 1 else op.op
    if op.algorithm:
        text += f": {op.algorithm}"
    if op.candidates:
        text += "; ".join(f" {c.algorithm}({c.parameter}) {_shown(c.predicted_us)}" for c in op.candidates)
    return text


def plan_of(native: dict[str, Any]) -> Plan:
    """Return the plan that the native core describes."""
    ops = (PlannedOp._make((*op[:-1], tuple(AlgorithmCost(*cost) for cost in op[-1]))) for op in native["ops"])
    return Plan(**(native | {"ops": tuple(ops)}))
