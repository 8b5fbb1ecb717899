"""Quota of the audit records that sessions of one token cause without changing anything: logins and read-only links."""

from walle.base.clock import Clock
from walle.base.daily_quota import DailyQuota
from walle.errors import DeployError

MAX_RECORDS_A_DAY = 200  # records of one token; a person needs a few


class RecordQuotaError(DeployError):
    """A login or a link beyond the quota of its token: try again in `retry_after_s`."""

    status = 429

    def __init__(self, who: str, most: int, retry_after_s: int) -> None:
        super().__init__(who, most, retry_after_s)
        self.who = who
        self.most = most
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return (
            f"the token of {self.who} has logged in or made links {self.most} times, the most in a day; use a session"
            f" or a link that you have, or try again in {self.retry_after_s} s"
        )


class RecordQuota:
    """The logins and links of one gateway: each token has `most` of them at first, and as many more in each day."""

    def __init__(self, clock: Clock, most: int = MAX_RECORDS_A_DAY) -> None:
        self._records = DailyQuota(clock, most)

    def take(self, who: str) -> None:
        """Count a login or a link of the token named `who`. Raises RecordQuotaError."""
        if retry_after_s := self._records.take(who):
            raise RecordQuotaError(who, self._records.most, retry_after_s)
