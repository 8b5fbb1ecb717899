"""The error tree. Each leaf lives beside the code that raises it and carries fields, not just text.

WalleError
├── EngineError      a model, shape, dtype or backend the engine cannot take       (engine_ext)
├── VMError          a task that raised, ran too long or reached for too much      (engine_ext)
├── PipelineError    an event, condition, stored feature or tunnel that is wrong   (pipeline)
├── DeployError      a task repo, bundle, signature, policy or release             (deploy)
└── ConfigError      a setting, a file or an argument given by a person

`walle.protocol.ProtocolError` stands outside the tree: that module imports nothing of walle. Code that meets it turns
it into the error of its own layer.
"""


class WalleError(Exception):
    """Anything that walle refuses or fails at, with a message that says what, where and what to do."""


class EngineError(WalleError):
    """A model, shape, dtype or backend that the engine cannot take."""


class VMError(WalleError):
    """A task that raised, ran too long, or reached for what it may not have."""


class PipelineError(WalleError):
    """An event, a trigger condition, a stored feature or a tunnel that is wrong."""


class DeployError(WalleError):
    """A task repository, bundle, signature, policy or release that is wrong."""


class ConfigError(WalleError):
    """A setting, a file or an argument that a person gave."""
