# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The facts of a cluster's nodes as they stand in one of Ansible's caches. Pure.

They stand there as packed texts: Ansible copies what a cache is given, and since ansible-core 2.19 it looks at every
value in it, each way. Of texts there are few.
"""
from __future__ import annotations

import base64
import json
import zlib
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence

# What node_facts says; one that says something else has a number of its own, so that no old entry is taken for it
SCHEMA = 1
# How many nodes one text holds: no more of them than that are in memory twice
NODES_A_TEXT = 500
# Labels are much alike: the fastest makes a twentieth of them
LEVEL = 1


@dataclass(frozen=True)
class Entry:
    """What a cache has of a question. read: when the cluster was asked; age: how long ago that is, in seconds."""

    read: float
    age: float
    texts: Sequence[str]

    def facts(self) -> List[Dict[str, Any]]:
        return [each for text in self.texts for each in json.loads(zlib.decompress(base64.b64decode(text)))]


def entry(question: str, facts: Sequence[Mapping[str, Any]], now: float) -> Dict[str, Any]:
    """What the cache is given. question: what the facts answer; now: seconds since the epoch."""
    return {"schema": SCHEMA, "question": question, "read": now, "nodes": [
        base64.b64encode(zlib.compress(json.dumps(facts[first:first + NODES_A_TEXT]).encode(), LEVEL)).decode()
        for first in range(0, len(facts), NODES_A_TEXT)]}


def found(value: Any, question: str, now: float) -> Optional[Entry]:
    """What answers the question in an entry of the cache; None where it is of another one, or of another release."""
    if not isinstance(value, dict) or (value.get("schema"), value.get("question")) != (SCHEMA, question):
        return None
    # Where a clock was set back, an entry of the future is as old as it is far away
    return Entry(value["read"], abs(now - value["read"]), value["nodes"])
