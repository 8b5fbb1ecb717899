"""`walle.nn`: networks that train on the engine, with PyTorch's names, argument order and defaults.

A network is a `Module`; its layers compute with the engine's operators on arrays of `walle.np`. Names are loaded on
first use, because task VMs import this. A module that needs another module's names inside a function takes them from
here, so that a VM registers the load (see `walle.engine_ext.lazy`).
"""

from __future__ import annotations

from walle.engine_ext import lazy

TYPE_CHECKING = False  # `typing` would double a task VM's start-up time
if TYPE_CHECKING:
    from walle.engine_ext.nn import functional as functional
    from walle.engine_ext.nn import init as init
    from walle.engine_ext.nn.activations import *  # noqa: F403
    from walle.engine_ext.nn.attention import *  # noqa: F403
    from walle.engine_ext.nn.containers import *  # noqa: F403
    from walle.engine_ext.nn.convolution import *  # noqa: F403
    from walle.engine_ext.nn.dropout import *  # noqa: F403
    from walle.engine_ext.nn.export import *  # noqa: F403
    from walle.engine_ext.nn.generator import manual_seed as manual_seed
    from walle.engine_ext.nn.gradient import grad as grad
    from walle.engine_ext.nn.gradient import value_and_grad as value_and_grad
    from walle.engine_ext.nn.linear import *  # noqa: F403
    from walle.engine_ext.nn.losses import *  # noqa: F403
    from walle.engine_ext.nn.module import *  # noqa: F403
    from walle.engine_ext.nn.normalization import *  # noqa: F403
    from walle.engine_ext.nn.onnx_export import to_onnx as to_onnx
    from walle.engine_ext.nn.onnx_model import from_onnx as from_onnx
    from walle.engine_ext.nn.pooling import *  # noqa: F403
    from walle.engine_ext.nn.recurrent import *  # noqa: F403
    from walle.engine_ext.nn.tracing import Parameter as Parameter
    from walle.engine_ext.nn.train_step import TrainStep as TrainStep

# Module → its names.
_MODULES = {
    "activations": (
        "ELU GELU Hardsigmoid Hardswish Hardtanh LeakyReLU LogSigmoid LogSoftmax Mish PReLU ReLU ReLU6 SELU SiLU "
        "Sigmoid Softmax Softplus Tanh"
    ),
    "attention": "MultiheadAttention TransformerEncoderLayer",
    "containers": "ModuleDict ModuleList ParameterList Sequential",
    "convolution": "Conv1d Conv2d ConvTranspose1d ConvTranspose2d",
    "dropout": "Dropout",
    "export": "checkpoint load resume save to_walle",
    "generator": "manual_seed",
    "gradient": "grad value_and_grad",
    "linear": "Embedding Flatten Linear Unflatten",
    "losses": (
        "BCELoss BCEWithLogitsLoss CTCLoss CosineSimilarity CrossEntropyLoss HuberLoss KLDivLoss L1Loss MSELoss "
        "NLLLoss SmoothL1Loss"
    ),
    "module": "Identity Module",
    "normalization": "BatchNorm1d BatchNorm2d GroupNorm InstanceNorm2d LayerNorm RMSNorm",
    "onnx_export": "to_onnx",
    "onnx_model": "from_onnx",
    "pooling": "AdaptiveAvgPool1d AdaptiveAvgPool2d AvgPool1d AvgPool2d MaxPool1d MaxPool2d Upsample",
    "recurrent": "GRU LSTM RNN",
    "tracing": "Parameter",
    "train_step": "TrainStep",
}
_SUBMODULES = ("functional", "init")

__getattr__, __dir__ = lazy.attributes(globals(), "walle.nn", _MODULES, _SUBMODULES)

if not TYPE_CHECKING:  # a type checker takes the names from the imports above
    __all__ = __dir__()  # noqa: PLE0605 -- a list, made from the table
