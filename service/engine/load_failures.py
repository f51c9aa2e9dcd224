"""Decides whether and when the load of a version that failed is tried again.

The fault of a version's own folder stays until the folder changes, so it is tried a bounded number of times. What
failed for another reason (a cluster, an object store, memory, a password, a file system that does not answer) is tried
for ever, because nothing in the folder will tell that the reason is gone.
"""

from __future__ import annotations

import errno
import random
from dataclasses import dataclass

from service.artifact.completeness import Fingerprint
from service.errors import ServiceError

# Codes of errors whose reason does not lie in a version's folder.
_OUTSIDE_CODES = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED"})
# Errors of the operating system about one file, whose mending changes the version's folder.
_ABOUT_FILES = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EACCES, errno.EINVAL}
)
_FIRST_WAIT_S = 1.0


def is_outside(error: BaseException | None) -> bool:
    """Says whether an error, or an error that caused it, has a reason outside of the version's folder."""
    while error is not None:
        if isinstance(error, ServiceError) and error.code in _OUTSIDE_CODES:
            return True
        if isinstance(error, OSError) and error.errno not in {*_ABOUT_FILES, None}:
            return True
        if isinstance(error, MemoryError):
            return True
        error = error.__cause__
    return False


@dataclass(slots=True)
class Failure:
    """The failed loads of one version. seen: fingerprint of its folder at the last one. retry_at_s: of LoadRules.clock;
    None: not before the folder changes.
    """

    attempts: int = 0
    retry_at_s: float | None = 0.0
    seen: Fingerprint | None = None

    def note(self, error: Exception, now_s: float, interval_s: float, max_retries: int) -> float | None:
        """Counts a failed load; returns the seconds until the next one, None if there is none.

        After a reason outside of the folder, the waits double from a second up to interval_s. They are up to 20 %
        shorter or longer at random, so that the servers of one cluster do not all come back at the same moment.
        """
        self.attempts += 1
        wait_s: float | None = interval_s
        if is_outside(error):
            longest_s = max(interval_s, _FIRST_WAIT_S)
            wait_s = min(_FIRST_WAIT_S * 2.0 ** min(self.attempts - 1, 30), longest_s) * random.uniform(0.8, 1.2)
        elif self.attempts > max_retries:
            wait_s = None
        self.retry_at_s = None if wait_s is None else now_s + wait_s
        return wait_s

    def is_due(self, now_s: float) -> bool:
        """Says whether the version may be loaded again."""
        return self.retry_at_s is not None and now_s >= self.retry_at_s
