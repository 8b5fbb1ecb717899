"""`walle.nn.functional`: layers and losses as functions, with PyTorch's names, argument order and defaults.

Every function works on arrays at once and on values that a training step records. An input is an array or a Parameter;
shapes are PyTorch's: (batch, channels, height, width). Names are loaded on first use, as those of `walle.np`.
"""

from __future__ import annotations

from walle.engine_ext import lazy

TYPE_CHECKING = False  # `typing` would double a task VM's start-up time
if TYPE_CHECKING:
    from walle.engine_ext.nn.functional.activations import *  # noqa: F403
    from walle.engine_ext.nn.functional.attention import *  # noqa: F403
    from walle.engine_ext.nn.functional.class_losses import *  # noqa: F403
    from walle.engine_ext.nn.functional.distances import *  # noqa: F403
    from walle.engine_ext.nn.functional.normalization import *  # noqa: F403
    from walle.engine_ext.nn.functional.pooling import *  # noqa: F403
    from walle.engine_ext.nn.functional.products import *  # noqa: F403
    from walle.engine_ext.nn.functional.regression_losses import *  # noqa: F403
    from walle.engine_ext.nn.functional.resampling import *  # noqa: F403
    from walle.engine_ext.nn.functional.temporal_loss import *  # noqa: F403

# Module → its names.
_MODULES = {
    "activations": (
        "elu gelu hardsigmoid hardswish hardtanh leaky_relu log_softmax logsigmoid mish prelu relu relu6 selu sigmoid "
        "silu softmax softplus tanh"
    ),
    "attention": "scaled_dot_product_attention",
    "class_losses": (
        "bce bce_with_logits binary_cross_entropy binary_cross_entropy_with_logits cross_entropy kl_div nll_loss"
    ),
    "distances": "cosine_similarity normalize one_hot",
    "normalization": "batch_norm dropout group_norm instance_norm layer_norm rms_norm",
    "pooling": (
        "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_max_pool2d avg_pool1d avg_pool2d max_pool1d max_pool2d"
    ),
    "products": ("conv1d conv2d conv_transpose1d conv_transpose2d embedding linear"),
    "regression_losses": "huber huber_loss l1 l1_loss mse mse_loss smooth_l1 smooth_l1_loss",
    "resampling": "interpolate pad",
    "temporal_loss": "ctc_loss",
}

__getattr__, __dir__ = lazy.attributes(globals(), "walle.nn.functional", _MODULES)

if not TYPE_CHECKING:  # a type checker takes the names from the imports above
    __all__ = __dir__()  # noqa: PLE0605 -- a list, made from the table
