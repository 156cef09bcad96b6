# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The collection's one error family: every refusal says what was found, what was wanted and what to do."""
from __future__ import annotations

from typing import Any, Dict


class GpuOpsError(Exception):
    """A refusal or a failure that a person can act on.

    found:   what is there, in the words of the field, with the value that was read.
    wanted:  what the policy or the step asked for.
    remedy:  what the reader should do next.
    details: further keys for the module's result (command, rc, stderr ...).
    """

    def __init__(self, found: str, wanted: str, remedy: str, **details: Any) -> None:
        super().__init__(found, wanted, remedy)
        self.found = found
        self.wanted = wanted
        self.remedy = remedy
        self.details = details

    def __str__(self) -> str:
        return "Found: %s. Wanted: %s. Do: %s." % tuple(
            part.rstrip(".") for part in (self.found, self.wanted, self.remedy)
        )

    def result(self) -> Dict[str, Any]:
        """The keys of a failed module result."""
        return dict(self.details, msg=str(self), found=self.found, wanted=self.wanted, remedy=self.remedy)


class LibraryMissing(Exception):
    """A library that the controller ships is not on this host yet; the action plugin answers by shipping it."""
