# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Why something is not done, as data. The one form of it, in plans, errors and results. Pure.

Options and what is to be typed stand in backticks, so that named() can put the variable there that the reader has set.
"""
from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Dict, Mapping, Sequence

IN_BACKTICKS = re.compile(r"`(\w+)`")


@dataclass(frozen=True)
class Refusal:
    """A refusal or a failure that a person can act on; nothing is written while one stands in a plan.

    code:   which one it is, as 'driver.version_not_offered': the capability or the area whose word it is, and its
            meaning. Stable, so that rulebooks match it; docs/refusals.md lists them.
    found:  what is there, in the words of the field, with the value that was read.
    wanted: what the policy or the step asked for.
    remedy: what the reader should do next.
    option: the module's option that the remedy is about, '' where it is about none.
    """

    code: str
    found: str
    wanted: str
    remedy: str
    option: str = ""

    @property
    def capability(self) -> str:
        """Whose word it is: a capability, or what several share, as 'host', 'packages' and 'approval'."""
        return self.code.partition(".")[0]

    def __str__(self) -> str:
        parts = tuple(part.rstrip(".") for part in (self.found, self.wanted, self.remedy))
        return "Found: %s. Wanted: %s. Do: %s. [%s]" % (*parts, self.code)

    def to_dict(self) -> Dict[str, str]:
        return {"code": self.code, "found": self.found, "wanted": self.wanted, "remedy": self.remedy,
                "option": self.option}

    @classmethod
    def from_dict(cls, data: Mapping[str, str]) -> Refusal:
        return cls(data["code"], data["found"], data["wanted"], data["remedy"], data["option"])

    def named(self, variables: Mapping[str, str]) -> Refusal:
        """With the reader's variables in place of options. variables: {option: variable}."""
        return replace(self, found=named(self.found, variables), wanted=named(self.wanted, variables),
                       remedy=named(self.remedy, variables), option=variables.get(self.option, self.option))


def named(text: str, variables: Mapping[str, str]) -> str:
    """The text with those of its words in backticks that are options replaced. variables: {option: variable}."""
    return IN_BACKTICKS.sub(lambda word: "`%s`" % variables.get(word.group(1), word.group(1)), text)


def told(refusals: Sequence[Refusal]) -> str:
    """The first of them in full, and of the others what was found."""
    first, *others = refusals
    if not others:
        return str(first)
    more = "; ".join("%s [%s]" % (other.found.rstrip("."), other.code) for other in others)
    return "%s And %d more, in `refusals` of this result: %s." % (first, len(others), more)


def as_result(refusals: Sequence[Refusal]) -> Dict[str, Any]:
    """The keys of a failed result: of the first refusal its parts, of all of them the list."""
    return dict(refusals[0].to_dict(), msg=told(refusals), refusals=[refusal.to_dict() for refusal in refusals])
