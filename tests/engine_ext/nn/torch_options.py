"""Optimizers, schedules, first weights and texts that are compared with PyTorch."""

from collections.abc import Callable
from typing import Any

# Name → class and options.
OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "SGD": ("SGD", {"lr": 0.1}),
    "SGD with momentum": ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    "SGD with dampening": ("SGD", {"lr": 0.1, "momentum": 0.8, "dampening": 0.3}),
    "SGD of Nesterov": ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "SGD by default": ("SGD", {}),
    "Adam": ("Adam", {}),
    "Adam with decay": ("Adam", {"lr": 0.05, "betas": (0.8, 0.99), "eps": 1e-6, "weight_decay": 0.1}),
    "AMSGrad": ("Adam", {"lr": 0.05, "amsgrad": True}),
    "AdamW": ("AdamW", {}),
    "AdamW with AMSGrad": ("AdamW", {"lr": 0.05, "weight_decay": 0.2, "amsgrad": True}),
    "RMSprop": ("RMSprop", {}),
    "RMSprop centered": ("RMSprop", {"lr": 0.02, "alpha": 0.9, "momentum": 0.5, "centered": True, "weight_decay": 0.1}),
    "Adagrad": ("Adagrad", {}),
    "Adagrad with decay": (
        "Adagrad",
        {"lr": 0.1, "lr_decay": 0.2, "weight_decay": 0.1, "initial_accumulator_value": 0.5},
    ),
}

# Parameter → numbers of the steps that it is frozen in.
FROZEN: dict[str, tuple[int, ...]] = {"always": (), "late": (0, 1, 2, 3), "paused": (4, 5, 8)}

# Name → schedule of the module of schedules and an optimizer.
SCHEDULES: dict[str, Callable[[Any, Any], Any]] = {
    "StepLR": lambda module, optimizer: module.StepLR(optimizer, 3, 0.5),
    "MultiStepLR": lambda module, optimizer: module.MultiStepLR(optimizer, [2, 5, 5, 9], 0.3),
    "ExponentialLR": lambda module, optimizer: module.ExponentialLR(optimizer, 0.9),
    "CosineAnnealingLR": lambda module, optimizer: module.CosineAnnealingLR(optimizer, 10, 0.01),
    "LinearLR": lambda module, optimizer: module.LinearLR(optimizer),
    "LinearLR down": lambda module, optimizer: module.LinearLR(optimizer, 1.0, 0.2, 8),
    "LambdaLR": lambda module, optimizer: module.LambdaLR(optimizer, lambda epoch: 0.8**epoch),
    "SequentialLR": lambda module, optimizer: module.SequentialLR(
        optimizer, [module.LinearLR(optimizer, 0.1, 1.0, 4), module.StepLR(optimizer, 2)], [4]
    ),
}

# Layers large enough that statistics of their first weights say something.
INITIAL: dict[str, Callable[[Any], Any]] = {
    "Linear": lambda nn: nn.Linear(200, 300),
    "Conv2d": lambda nn: nn.Conv2d(32, 48, 5, groups=2),
    "ConvTranspose2d": lambda nn: nn.ConvTranspose2d(32, 48, 5),
    "Embedding": lambda nn: nn.Embedding(400, 100),
    "GRU": lambda nn: nn.GRU(60, 100),
    "LSTM": lambda nn: nn.LSTM(60, 100, bidirectional=True),
    "MultiheadAttention": lambda nn: nn.MultiheadAttention(128, 4),
    "MultiheadAttention of other widths": lambda nn: nn.MultiheadAttention(128, 4, kdim=100, vdim=60),
    "TransformerEncoderLayer": lambda nn: nn.TransformerEncoderLayer(64, 4),
    "BatchNorm2d": lambda nn: nn.BatchNorm2d(8),
    "PReLU": lambda nn: nn.PReLU(4),
}

# Layers whose text is compared.
TEXTS: dict[str, Callable[[Any], Any]] = {
    "Linear": lambda nn: nn.Linear(3, 4, bias=False),
    "Conv2d": lambda nn: nn.Conv2d(4, 6, (3, 2), (2, 1), (1, 0), groups=2, bias=False, padding_mode="reflect"),
    "Conv1d": lambda nn: nn.Conv1d(4, 6, 3, padding="same", dilation=2),
    "ConvTranspose2d": lambda nn: nn.ConvTranspose2d(4, 2, 3, 2, 1, 1),
    "BatchNorm2d": lambda nn: nn.BatchNorm2d(3),
    "GroupNorm": lambda nn: nn.GroupNorm(2, 6),
    "Embedding": lambda nn: nn.Embedding(5, 3, 0),
    "GRU": lambda nn: nn.GRU(3, 4, 2, batch_first=True, bidirectional=True),
    "MaxPool2d": lambda nn: nn.MaxPool2d(2),
    "AvgPool2d": lambda nn: nn.AvgPool2d((2, 3), 1),
    "Dropout": lambda nn: nn.Dropout(0.3),
    "Upsample": lambda nn: nn.Upsample(scale_factor=2),
    "ELU": lambda nn: nn.ELU(),
    "Softmax": lambda nn: nn.Softmax(dim=1),
    "network": lambda nn: nn.Sequential(
        nn.Linear(3, 4), nn.ReLU(inplace=True), nn.ModuleList([nn.Tanh(), nn.Linear(2, 2), nn.Linear(2, 2)])
    ),
    "ModuleDict": lambda nn: nn.ModuleDict({"a": nn.Flatten(), "b": nn.Sequential()}),
}
