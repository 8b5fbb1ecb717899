"""One conversion of a model as its process gets it: its limits, and the stages that errors name."""

from dataclasses import dataclass

# The stages of a conversion, as errors name them.
READING = "read the file"
FUNCTIONS = "replace calls of functions"
SHAPES = "infer shapes"
WRITING = "write the operators of the engine"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertLimits:
    """Limits of one conversion, whose process is ended where it exceeds one.

    It has `memory_bytes` of memory, and `memory_factor` times the size of the model's file more; mapped files do not
    count. `value_bytes` bounds each value of the graph whose shape is known, `nodes` a TFLite model's operators, or the
    nodes of the graph and its subgraphs after functions are inlined.
    """

    memory_bytes: int = 512 << 20
    memory_factor: int = 4
    cpu_s: int = 120
    wall_s: float = 300.0
    value_bytes: int = 16 << 30
    nodes: int = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A conversion. `folder` has the model's external data, "" for none.

    With `nodes` it works on the first nodes of the graph alone, and writes nothing: a search for the node that ends
    the process.
    """

    folder: str
    limits: ConvertLimits
    nodes: int | None = None
