# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What came of computing in a container, as the line that its pod's status carries to the controller. Pure.

The kubelet keeps 4096 bytes of a termination message, the last ones
(https://kubernetes.io/docs/tasks/debug/debug-application/determine-reason-pod-failure/).
"""
from __future__ import annotations

import json
from dataclasses import fields
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

from .model import Device, Proof, Wrong

# Why an image cannot compute at all: the word instead of a proof
UNABLE = "unable"
# Which nodes of the driver a container lacks, and which files of the library it has
LACKS, THERE = "lacks", "there"
# Of texts and of lists, what the line has of each
_MOST = {"log": 1000, "error": 300}
_MOST_WRONG = 2
GIVEN = Device("", "the device that the container was given")


def line_of(proof: Proof, **more: Sequence[str]) -> str:
    """The line. Of many wrong results it has the first ones, and how many there are."""
    empty = Proof(GIVEN)
    found: Dict[str, Any] = {
        name: getattr(proof, name) for name in _NAMES if getattr(proof, name) != getattr(empty, name)}
    for name, most in _MOST.items():
        if name in found:
            found[name] = found[name].encode("ascii", "replace").decode()[:most]
    if proof.wrong:
        found["wrong"] = [list(vars(each).values()) for each in _first(proof.wrong)]
    return json.dumps({**found, **{name: list(words) for name, words in more.items() if words}})


def unable(why: str) -> str:
    return json.dumps({UNABLE: why[:_MOST["error"]]})


def proof_in(said: Mapping[str, Any]) -> Optional[Proof]:
    """What a line says, read as JSON; None where that is no proof."""
    empty = Proof(GIVEN)
    known = {name: said[name] for name in _NAMES if name in said}
    try:
        wrong = tuple(Wrong(str(what), str(where), str(expected), str(got), int(count))
                      for what, where, expected, got, count in said.get("wrong", ()))
    except (TypeError, ValueError):
        return None
    if not known or not all(isinstance(value, type(getattr(empty, name))) for name, value in known.items()):
        return None
    return Proof(GIVEN, wrong=wrong, **known)


def _first(wrong: Sequence[Wrong]) -> Tuple[Wrong, ...]:
    more = len(wrong) - _MOST_WRONG
    return (*wrong[:_MOST_WRONG], *([Wrong("others", "%d more places" % more)] if more > 0 else []))


_NAMES = tuple(field.name for field in fields(Proof) if field.name not in ("device", "wrong", "rates"))
