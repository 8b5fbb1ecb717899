"""Errors of federated rounds, with what they refuse as fields."""

from walle.errors import FederatedError


class WeightsError(FederatedError):
    """A model or a difference whose names, shapes, types or values are wrong."""


class UpdateError(FederatedError):
    """The body of an update that does not fit the global model, or is damaged."""


class AggregationError(FederatedError):
    """Updates that cannot be aggregated: too few of them, or a result that is not finite."""


class RoundError(FederatedError):
    """A transition that the state of a round does not allow, or a record that is wrong."""


class UpdateRefusedError(FederatedError):
    """An update that does not count; the device can forget it.

    `cause` is one of the REFUSALS of `walle.federated.round`.
    """

    def __init__(self, device: str, round_number: int, cause: str, reason: str) -> None:
        super().__init__(device, round_number, cause, reason)
        self.device = device
        self.round_number = round_number
        self.cause = cause
        self.reason = reason

    def __str__(self) -> str:
        return f"update of device {self.device!r} for round {self.round_number} refused: {self.reason}"
