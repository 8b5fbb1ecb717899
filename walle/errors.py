"""The error tree. Each leaf class is beside the code that raises it and has fields, not just text.

WalleError
├── EngineError      a model, shape, dtype or backend the engine cannot take,
│                    or a run that was stopped                                  (engine_ext)
├── VMError          a task that raised, ran too long or broke a limit             (engine_ext)
├── PipelineError    an event, condition, stored feature or tunnel that is wrong   (pipeline)
├── DeployError      a task repo, bundle, signature, policy or release             (deploy)
├── FederatedError   a model, update, aggregation or round of federated learning   (federated)
└── ConfigError      a setting, a file or an argument given by a person

`walle.protocol.ProtocolError` is outside the tree: that module imports nothing of walle. Code that catches it converts
it into the error of its layer.
"""


class WalleError(Exception):
    """A refusal or failure of walle, with a message that says what, where and what to do."""


class EngineError(WalleError):
    """A model, shape, dtype or backend that the engine cannot take, or a run that was stopped."""


class VMError(WalleError):
    """A task that raised, ran too long, broke a limit, or imported what it may not.

    `log` has the last lines that the failed run logged, as an outcome report carries them, where they are known.
    `cpu_s` is the CPU time of the failed run, in seconds on the thread of its VM, None where it is not known.
    """

    log = ""
    cpu_s: float | None = None


class PipelineError(WalleError):
    """An event, a trigger condition, a stored feature or a tunnel that is wrong."""


class DeployError(WalleError):
    """A task repository, bundle, signature, policy or release that is wrong."""


class FederatedError(WalleError):
    """A model, an update, an aggregation or a round of federated learning that is wrong."""


class ConfigError(WalleError):
    """A setting, a file or an argument that a person gave."""
