"""A training step: forward, backward and update as one plan (§4.2)."""

from __future__ import annotations

from collections import OrderedDict

from walle.engine_ext import _core
from walle.engine_ext.errors import BackendError, DTypeError, ModelError, NonFiniteError, ShapeError
from walle.engine_ext.nn.traced_buffers import TracedBuffers
from walle.engine_ext.nn.tracing import Parameter, Trace, Traced

TYPE_CHECKING = False  # `typing` would double a task VM's start-up time
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from walle.engine_ext._core import ndarray
    from walle.engine_ext.nn.module import Module
    from walle.engine_ext.optim.optimizer import Optimizer

__all__ = ["TrainStep"]

_LR, _COUNT, _RANDOM = "learning rate", "count", "random state"
_VARIADIC = 4  # CPython's CO_VARARGS
_MANY = 1 << 30
_PLANS = 8  # shapes of inputs whose plans are kept
_BFLOAT16, _SAME_IN_FLOAT32 = "avx512_bf16", "avx512"  # backends; "auto" selects the second where the CPU has the first


class TrainStep:
    """A step of training: `step(*inputs, *targets)` returns the loss and updates the model.

    The first arguments go to `model`, as many as its `forward` needs, and its result with the others to `loss`,
    which returns one number. Arguments that `loss` has no place for go to the optional ones of `forward`. Each set
    of input shapes is traced and planned once: settings of the optimizer and modes of modules may change later,
    other attributes of modules are read then. Parameters with `requires_grad` False are constants of the plan.

    `clip_grad_norm` bounds the norm of all gradients together. `seed` determines the random numbers of dropout, with
    the number of the step. A step whose loss or gradients are not finite changes nothing and raises.

    With `weights="bfloat16"`, matrix products and convolutions, forwards and backwards, round both operands to bfloat16
    and sum in float32, by the backend "avx512_bf16". Depthwise convolutions and most products of one column or at most
    4 rows stay float32, and so do the parameters that the optimizer updates and that `state_dict` and `save` give.

    Raises:
        BackendError: the CPU or the backend lacks products of bfloat16, and `weights` asks for them.

    Raises, of a call:
        ModelError: the model has no parameter to train; `loss` returns more than one number.
        DTypeError: an input has another float type than the parameters.
        UnsupportedError: an operator has no gradient, or no gradient reaches a parameter; the message names the node
            or the parameter.
        NonFiniteError: the loss or a gradient is NaN or infinite; the message names the first node that made it.
    """

    def __init__(
        self,
        model: Module,
        loss: Callable[..., Any],
        optimizer: Optimizer,
        *,
        clip_grad_norm: float | None = None,
        seed: int = 0,
        threads: int = 1,
        backend: str = "auto",
        weights: str = "float32",
    ) -> None:
        self.model, self.loss, self.optimizer = model, loss, optimizer
        self.clip_grad_norm = clip_grad_norm
        self.seed = seed
        self.count = 0  # steps so far
        self.states: dict[str, dict[str, ndarray]] = {}  # by parameter: the optimizer's
        self.missed: dict[str, int] = {}  # by parameter: steps that did not update it
        if weights not in ("float32", "bfloat16"):
            raise DTypeError(f"weights={weights!r}; known are 'float32' and 'bfloat16'")
        self._weights = weights
        self._threads, self._backend = threads, _bfloat16_backend(backend) if weights == "bfloat16" else backend
        self._plans: OrderedDict[Any, _Plan] = OrderedDict()

    def __call__(self, *arrays: Any, deadline: float | None = None) -> ndarray:
        """Take one step, and return the loss before it, an array without dimensions."""
        given = [_core.asarray(one) for one in arrays]
        parts = _Parts(self.model)
        plan = self._plan_for(given, parts)
        values = self._inputs_of(plan.inputs, given, parts, exclusive=True)
        results = plan.session.run(values, deadline)
        loss = results["loss"]
        if not bool(results["is finite"]):
            raise NonFiniteError(
                f"step {self.count + 1}: {plan.session.find_nonfinite(values) or 'the loss is not finite'}"
            )
        parts.assign(results)
        self.count += 1
        for name in plan.frozen:
            self.missed[name] = self.missed.get(name, 0) + 1
        return loss

    def gradients(self, *arrays: Any) -> dict[str, ndarray]:
        """Return the gradient of each trained parameter, by name, and change nothing."""
        given = [_core.asarray(one) for one in arrays]
        parts = _Parts(self.model)
        trained = self._trained(parts)
        with Trace(f"gradients of {type(self.model).__name__}") as trace:
            values, _ = self._trace_loss(trace, given, trained)
            names = list(trained)
            for name, one in zip(names, trace.gradient(values[0], [values[1][name] for name in names]), strict=True):
                trace.output(f"parameter {name}", one)
        session = _core.Session(trace.graph(), self._backend, self._threads)
        found = session.run(self._inputs_of([name for name, _, _ in trace.inputs], given, parts))
        return {name.removeprefix("parameter "): one for name, one in found.items()}

    def plan(self) -> Any:
        """Return the plan of the last step, as `Session.plan`; None before the first."""
        from walle.engine_ext.session_info import plan_of

        last = next(reversed(self._plans.values()), None)
        native = None if last is None else last.session.plan()
        return None if native is None else plan_of(native)

    # State.

    def state_dict(self, *, frozen: bool = True) -> dict[str, ndarray]:
        """Return everything that later steps depend on, by name: the model's state, the optimizer's, and the count.

        Without `frozen` parameters it is as small as what is trained, for a task's `ctx.checkpoint`.
        """
        left_out = set() if frozen else self._frozen().keys()
        state = {f"model/{name}": one for name, one in self.model.state_dict().items() if name not in left_out}
        for name, states in self.states.items():
            state |= {f"optimizer/{name}/{key}": array for key, array in states.items()}
        state |= {f"missed/{name}": _core.asarray(count, "int64") for name, count in self.missed.items()}
        state["count"] = _core.asarray(self.count, "int64")
        state["learning rate"] = _core.asarray(self.optimizer.lr, "float64")
        state["seed"] = _core.asarray(self.seed, "int64")
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`; frozen parameters that it lacks stay.

        Raises:
            ModelError: it is of another model, or lacks a part.
        """
        for key in ("count", "learning rate", "seed"):
            if key not in state:
                raise ModelError(f"the state of a training step lacks {key!r}")
        prefix = "model/"
        given = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
        kept = {}
        for name, data in self._frozen().items():
            if name not in given or _is_same(_core.asarray(given[name]), data):
                kept[name] = given[name] = data  # the plans have this array as a constant
        self.model.load_state_dict(given)
        for name, parameter in self.model.named_parameters():
            if name in kept:
                parameter.data = kept[name]
        states: dict[str, dict[str, ndarray]] = {}
        for key, array in state.items():
            if key.startswith("optimizer/"):
                name, _, part = key.removeprefix("optimizer/").rpartition("/")
                states.setdefault(name, {})[part] = _core.asarray(array)
        self.states = states
        self.missed = {k.removeprefix("missed/"): int(v) for k, v in state.items() if k.startswith("missed/")}
        self.count, self.seed = int(state["count"]), int(state["seed"])
        self.optimizer.lr = float(state["learning rate"])

    def _frozen(self) -> dict[str, ndarray]:
        return {name: one.data for name, one in self.model.named_parameters() if not one.requires_grad}

    # Planning.

    def _trained(self, parts: _Parts) -> dict[str, Parameter]:
        trained = {name: one for name, one in parts.parameters.items() if one.requires_grad}
        if not trained:
            raise ModelError(f"{type(self.model).__name__} has no parameter with requires_grad")
        for name, one in trained.items():
            if self._weights == "bfloat16" and one.dtype != "float32":
                raise DTypeError(f"weights='bfloat16' rounds float32 parameters, and {name} is {one.dtype}")
        return trained

    def _plan_for(self, given: list[ndarray], parts: _Parts) -> _Plan:
        trained = self._trained(parts)
        self._begin(trained)
        frozen = {name: one for name, one in parts.parameters.items() if not one.requires_grad}
        fixed = tuple(id(one.data) for one in frozen.values())
        settings = {name: value for name, value in vars(self.optimizer).items() if name not in ("lr", "initial_lr")}
        rule = (repr(settings), id(self.optimizer), id(self.loss), self.clip_grad_norm)
        types = tuple((one.shape, str(one.dtype)) for one in given)
        key = (types, tuple(trained), self._counted_as(trained), tuple(parts.modes), fixed, rule)
        plan = self._plans.pop(key, None)
        if plan is None:
            for one in frozen.values():
                one.data.setflags(write=False)  # the plan has it as a constant: a write in place would not reach it
            plan = self._make_plan(given, trained)
            plan.frozen = {name: one.data for name, one in frozen.items()}  # kept: their ids are in the key
            _core.free_cached_blocks()  # memory of the traced values: no step has arrays of their size
        self._plans[key] = plan
        while len(self._plans) > _PLANS:
            self._plans.popitem(last=False)
        return plan

    def _trace_loss(
        self, trace: Trace, given: list[ndarray], trained: dict[str, Parameter]
    ) -> tuple[tuple[Any, dict[str, Traced]], dict[str, Traced]]:
        """Return the loss with the traced parameters, and what the run assigned to buffers."""
        self._check_types(given, trained)
        inputs = [trace.input(f"input {place}", one) for place, one in enumerate(given)]
        parameters = {name: trace.input(f"parameter {name}", one.data) for name, one in trained.items()}
        for name, one in trained.items():
            trace.bind(one, parameters[name])
        with TracedBuffers(self.model, lambda path, array: trace.input(f"buffer {path}", array)) as buffers:
            needed, most = _positional(self.model.forward)
            by_loss, of_loss = _positional(getattr(self.loss, "forward", self.loss))
            if needed == _MANY and by_loss < _MANY:  # *inputs: those that the loss leaves
                needed = len(inputs) + 1 - by_loss
            count = max(min(needed, max(1, len(inputs) - 1)), min(most, len(inputs) + 1 - of_loss), 1)
            loss = self.loss(self.model(*inputs[:count]), *inputs[count:])
            assigned = buffers.assigned()
        self.model.__dict__["_trained_on"] = [
            _core.broadcast_to(_core.zeros((), one.dtype), one.shape) for one in given[:count]
        ]
        shape = getattr(loss, "shape", None)
        if shape is None or any(length != 1 for length in shape):
            raise ShapeError(
                f"the loss has {'no shape' if shape is None else f'shape {tuple(shape)}'}; it is one number"
            )
        if not isinstance(loss, Traced):
            raise ModelError("the loss does not depend on the model's parameters")
        return (loss, parameters), assigned

    def _make_plan(self, given: list[ndarray], trained: dict[str, Parameter]) -> _Plan:
        from walle.engine_ext import np
        from walle.engine_ext.optim.clipping import clip_grad_norm

        with Trace(f"training of {type(self.model).__name__}") as trace:
            (loss, parameters), assigned = self._trace_loss(trace, given, trained)
            gradients: list[Any] = trace.gradient(loss, list(parameters.values()))
            trace.path = "update"
            if self.clip_grad_norm is not None:
                gradients, total = clip_grad_norm(gradients, self.clip_grad_norm)
            else:
                total = gradients[0].sum()
                for one in gradients[1:]:
                    total = total + one.sum()
            trace.output("loss", loss.reshape(()))
            trace.output("is finite", np.isfinite(total) & np.isfinite(loss.reshape(())))
            lr = trace.input(_LR, np.asarray(0.0, "float64"))
            counted_as = self._counted_as(trained)
            counts = {one: trace.input(f"{_COUNT} {one}", np.asarray(1.0, "float64")) for one in sorted({*counted_as})}
            for (name, parameter), gradient, first in zip(parameters.items(), gradients, counted_as, strict=True):
                own = self._states_of(name, trained[name].data)
                states = {key: trace.input(f"state {name}/{key}", array) for key, array in own.items()}
                new, new_states = self.optimizer.update(parameter, gradient, states, lr, counts[first])
                trace.output(f"parameter {name}", new)
                for key, state in new_states.items():
                    trace.output(f"state {name}/{key}", state)
            for path, value in assigned.items():
                trace.output(f"buffer {path}", value)
        updates = {name: name for name, _ in trace.outputs if name.startswith(("parameter ", "state "))}
        session = _core.Session(trace.graph(), self._backend, self._threads, updates=updates, condition="is finite")
        return _Plan(session, [name for name, _, _ in trace.inputs])

    def _begin(self, trained: dict[str, Parameter]) -> None:
        """Give each parameter that has no states yet its first ones, and count its updates from here."""
        for name, one in trained.items():
            if name not in self.states:
                self.states[name] = self.optimizer.states(one.data)
                if self.states[name] and self.count:  # a checkpoint has nothing of parameters without states
                    self.missed[name] = self.count

    def _counted_as(self, trained: dict[str, Parameter]) -> tuple[str, ...]:
        """Return for each parameter the first one that has as many updates: they share an input of the plan."""
        first: dict[int, str] = {}
        return tuple(first.setdefault(self.missed.get(name, 0), name) for name in trained)

    def _states_of(self, name: str, array: ndarray) -> dict[str, ndarray]:
        """Return the optimizer's states of a parameter."""
        first, own = self.optimizer.states(array), self.states[name]
        if set(own) != set(first):
            raise ModelError(
                f"{name} has the states {sorted(own)} of another optimizer; {type(self.optimizer).__name__} has "
                f"{sorted(first)}: set step.states = {{}} to begin again"
            )
        return own

    def _check_types(self, given: list[ndarray], trained: dict[str, Parameter]) -> None:
        types = sorted({str(one.dtype) for one in trained.values()})
        for place, one in enumerate(given):
            if str(one.dtype) in ("float32", "float64") and types and str(one.dtype) not in types:
                raise DTypeError(
                    f"input {place} is {one.dtype}, and the model's parameters are {types[0]}; convert it with "
                    f"astype({types[0]!r})"
                )

    # Running.

    def _inputs_of(
        self, names: list[str], given: list[ndarray], parts: _Parts, *, exclusive: bool = False
    ) -> dict[str, Any]:
        """Return the value of each input of a graph.

        `exclusive` copies parameters and states that code outside holds: the step writes to those that it is given.
        """
        values: dict[str, Any] = {
            _RANDOM: _core.asarray([self.seed, self.count << 20, 0], "int64"),
            _LR: _core.asarray(self.optimizer.lr, "float64"),
        }
        found = {}
        for name in names:
            kind, _, rest = name.partition(" ")
            if name in values:
                found[name] = values[name]
            elif kind == "input":
                found[name] = given[int(rest)]
            elif kind == _COUNT:
                found[name] = _core.asarray(float(self.count + 1 - self.missed.get(rest, 0)), "float64")
            elif kind == "buffer":
                table, last = parts.buffers[rest]
                found[name] = table[last]
            elif kind == "parameter":
                owner = parts.parameters[rest]
                if exclusive:
                    owner.data = _core.exclusive(owner.data, 1)
                found[name] = owner.data
            else:
                parameter, _, key = rest.rpartition("/")
                states = self.states[parameter]
                if exclusive:
                    states[key] = _core.exclusive(states[key], 1)
                found[name] = states[key]
        return found


class _Parts:
    """Parameters, buffers and modes of a model, of one walk over its modules, which takes a tenth of a small step."""

    def __init__(self, model: Module) -> None:
        self.parameters: dict[str, Parameter] = {}  # names of model.named_parameters()
        self.buffers: dict[str, tuple[dict[str, Any], str]] = {}  # by each path: the table that has it, and its name
        self.modes: list[bool] = []
        self._walk(model, "", set())

    def _walk(self, module: Module, start: str, seen: set[int]) -> None:
        own = module.__dict__
        if id(module) not in seen:
            seen.add(id(module))
            self.modes.append(own["training"])
            for name, parameter in own["_parameters"].items():
                if parameter is not None and id(parameter) not in seen:
                    seen.add(id(parameter))
                    self.parameters[start + name] = parameter
        table = own["_buffers"]
        for name, array in table.items():
            if array is not None:
                self.buffers[start + name] = table, name
        for name, part in own["_modules"].items():
            if part is not None:
                self._walk(part, f"{start}{name}.", seen)

    def assign(self, results: dict[str, ndarray]) -> None:
        """Make the results the model's buffers; parameters and states were updated in place."""
        for name, array in results.items():
            kind, _, rest = name.partition(" ")
            if kind == "buffer":
                table, last = self.buffers[rest]
                table[last] = array


class _Plan:
    """A planned step, with the names of its inputs and the frozen weights that it has as constants."""

    def __init__(self, session: _core.Session, inputs: list[str]) -> None:
        self.session = session
        self.inputs = inputs
        self.frozen: dict[str, ndarray] = {}


def _positional(callable: Callable[..., Any]) -> tuple[int, int]:
    """Return how many arguments it needs, and takes at most; many for *inputs or where this is not known."""
    function: Any = getattr(callable, "__func__", callable)  # function of a bound method
    code = getattr(function, "__code__", None)
    if code is None or code.co_flags & _VARIADIC:
        return _MANY, _MANY
    most: int = code.co_argcount - (1 if function is not callable else 0)
    return most - len(function.__defaults__ or ()), most


def _bfloat16_backend(backend: str) -> str:
    """Return the backend of a step with weights of bfloat16.

    Raises:
        BackendError: the CPU lacks it, or another one is asked for, by name or by WALLE_FORCE_ISA.
    """
    asked = _core.backend() if backend == "auto" else backend
    if not any(name == _BFLOAT16 and is_available for name, is_available, _ in _core.backends()):
        reason = "this CPU does not have"
    elif asked not in (_BFLOAT16, _SAME_IN_FLOAT32):
        reason = f"backend {asked!r} does not use"
    else:
        return _BFLOAT16
    raise BackendError(f"weights='bfloat16' needs AVX512_BF16, which {reason}; train with weights='float32'")


def _is_same(one: ndarray, other: ndarray) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and one.tobytes() == other.tobytes()
