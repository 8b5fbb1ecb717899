"""Record of PyTorch's results for the tests of walle.nn and walle.optim.

usage: python tests/engine_ext/nn/record_torch.py   (where torch and numpy are installed; from the checkout's root)

Writes torch_record.xz beside this file. For each case of torch_cases.py: inputs, first weights, results in training
mode and the buffers after them, losses and last weights of ten steps of SGD, and results in the mode of inference after
these. Then ten updates of each optimizer, the same of parameters that are frozen at times, schedules, statistics of
first weights, signatures and texts of layers.
"""

import inspect
import sys
from pathlib import Path
from typing import Any

import numpy
import torch

sys.path.insert(0, str(Path(__file__).parents[3]))
from tests.engine_ext.nn.torch_cases import CASES, arrays, fed, flat
from tests.engine_ext.nn.torch_options import FROZEN, INITIAL, OPTIMIZERS, SCHEDULES, TEXTS
from tests.engine_ext.nn.torch_record import write_record

STEPS = 10
LR = 0.02
MOMENTUM = 0.9


def record_case(name: str, record: dict[str, Any]) -> None:
    case = CASES[name]
    given = arrays(name, case)
    inputs = [torch.from_numpy(numpy.asarray(array)) for array in given]
    torch.manual_seed(len(name))
    module = fed(torch.nn, case, inputs)
    rest = inputs if module.input is None else inputs[1:]
    for at, array in enumerate(given):
        record[f"{name}/input {at}"] = array
    for path, value in module.state_dict().items():
        record[f"{name}/first/{path}"] = value.numpy().copy()
    results = list(flat(module(*rest)))
    for at, result in enumerate(results):
        record[f"{name}/result {at}"] = result.detach().numpy().copy()
    for path, value in module.named_buffers():
        record[f"{name}/moved/{path}"] = value.numpy().copy()
    if not case.trains:
        return
    module.load_state_dict({path: torch.from_numpy(record[f"{name}/first/{path}"]) for path in module.state_dict()})
    shape = results[0].shape
    state = numpy.random.RandomState(1)
    target = torch.from_numpy(state.standard_normal(tuple(shape)).astype("float32")) if shape else None
    if target is not None:
        record[f"{name}/target"] = target.numpy()
    optimizer = torch.optim.SGD(module.parameters(), LR, MOMENTUM)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        result = next(flat(module(*rest)))
        loss = result if target is None else torch.nn.functional.mse_loss(result, target)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    record[f"{name}/losses"] = numpy.array(losses, "float64")
    for path, value in module.state_dict().items():
        record[f"{name}/last/{path}"] = value.numpy().copy()
    module.eval()
    with torch.no_grad():
        for at, result in enumerate(flat(module(*rest))):
            record[f"{name}/last result {at}"] = result.numpy().copy()


def record_optimizers(record: dict[str, Any]) -> None:
    state = numpy.random.RandomState(5)
    start = state.standard_normal((3, 4)).astype("float32")
    gradients = state.standard_normal((STEPS, 3, 4)).astype("float32")
    record["optimizers/first"], record["optimizers/gradients"] = start, gradients
    for name, (kind, options) in OPTIMIZERS.items():
        parameter = torch.nn.Parameter(torch.from_numpy(start.copy()))
        optimizer = getattr(torch.optim, kind)([parameter], **options)
        path = []
        for gradient in gradients:
            parameter.grad = torch.from_numpy(gradient.copy())
            optimizer.step()
            path.append(parameter.detach().numpy().copy())
        record[f"optimizers/{name}"] = numpy.stack(path)
        parts = [torch.nn.Parameter(torch.from_numpy(start.copy())) for _ in FROZEN]
        optimizer = getattr(torch.optim, kind)(parts, **options)
        for at, gradient in enumerate(gradients):
            for part, frozen in zip(parts, FROZEN.values(), strict=True):
                part.grad = None if at in frozen else torch.from_numpy(gradient.copy())
            optimizer.step()
        record[f"frozen at times/{name}"] = numpy.stack([part.detach().numpy() for part in parts])
    for norm in (1.0, 2.0, 3.0, float("inf")):
        for limit in (0.5, 100.0):
            parts = [torch.nn.Parameter(torch.zeros(3, 4)) for _ in range(2)]
            for part, gradient in zip(parts, gradients, strict=False):
                part.grad = torch.from_numpy(gradient.copy())
            total = torch.nn.utils.clip_grad_norm_(parts, limit, norm)
            record[f"clipping/{norm} {limit}"] = numpy.stack([part.grad.numpy() for part in parts])
            record[f"clipping/{norm} {limit} total"] = total.numpy()


def record_schedules() -> dict[str, list[float]]:
    found = {}
    for name, make in SCHEDULES.items():
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.4)
        schedule = make(torch.optim.lr_scheduler, optimizer)
        rates = [optimizer.param_groups[0]["lr"]]
        for _ in range(14):
            optimizer.step()
            schedule.step()
            rates.append(optimizer.param_groups[0]["lr"])
        found[name] = rates
    return found


def record_initial() -> dict[str, dict[str, list[float]]]:
    """Return mean, deviation and greatest magnitude of each first weight."""
    torch.manual_seed(0)
    return {
        name: {
            path: [float(part.mean()), float(part.std(unbiased=False)), float(part.abs().max())]
            for path, part in make(torch.nn).state_dict().items()
            if part.is_floating_point() and "running" not in path
        }
        for name, make in INITIAL.items()
    }


def record_signatures() -> dict[str, list[tuple[str, Any]]]:
    """Return names and defaults of arguments, by name of a layer, function, optimizer or schedule."""
    found = {}
    for start, owner in (
        ("nn", torch.nn),
        ("functional", torch.nn.functional),
        ("init", torch.nn.init),
        ("optim", torch.optim),
        ("optim", torch.optim.lr_scheduler),
    ):
        for name in dir(owner):
            what = getattr(owner, name)
            if name.startswith("_") or not callable(what):
                continue
            try:
                parameters = inspect.signature(what).parameters.values()
            except (ValueError, TypeError):
                continue
            found[f"{start}.{name}"] = [
                (part.name, "required" if part.default is part.empty else repr(part.default)) for part in parameters
            ]
    return found


def main() -> None:
    torch.set_num_threads(1)
    record: dict[str, Any] = {}
    for name in CASES:
        record_case(name, record)
    record_optimizers(record)
    texts = {
        "version": torch.__version__,
        "steps": {"count": STEPS, "lr": LR, "momentum": MOMENTUM},
        "schedules": record_schedules(),
        "initial": record_initial(),
        "signatures": record_signatures(),
        "texts": {name: repr(make(torch.nn)) for name, make in TEXTS.items()},
    }
    path = Path(__file__).with_name("torch_record.xz")
    write_record(path, record, texts)
    print(f"{path}: {path.stat().st_size} bytes, {len(CASES)} cases, PyTorch {torch.__version__}")  # noqa: T201


if __name__ == "__main__":
    main()
