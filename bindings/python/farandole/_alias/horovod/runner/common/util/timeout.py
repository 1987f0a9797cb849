"""`horovod.runner.common.util.timeout`: a deadline with a message."""

import time


class TimeoutException(Exception):
    """A deadline has passed."""

    def __init__(self, message: str) -> None:
        self.message = message
        super().__init__(message)


class Timeout:
    """A deadline `timeout` seconds from now. `message` may say `{activity}`, which is filled in when it has passed."""

    def __init__(self, timeout: float, message: str) -> None:
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout
        self._message = message

    def remaining(self) -> float:
        """Seconds left, at least 0."""
        return max(0.0, self._deadline - time.monotonic())

    def timed_out(self) -> bool:
        """Whether the deadline has passed."""
        return time.monotonic() > self._deadline

    def check_time_out_for(self, activity: str) -> None:
        """Raises `TimeoutException`, naming `activity`, if the deadline has passed."""
        if self.timed_out():
            message = self._message.format(activity=activity).rstrip()
            stop = "" if message.endswith(".") else "."
            raise TimeoutException(f"{message}{stop} Timeout after {self._timeout} seconds.")
