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

from ..module_utils.cluster.nodes import skew_finding

# What node_facts says; one that says something else has a number of its own, so that no old entry is taken for it
SCHEMA = 1
# How many nodes one text holds: no more of them than that are in memory twice
NODES_A_TEXT = 500
# Nodes are much alike: the fastest makes a fortieth of them
LEVEL = 1


class Packing:
    """Facts of nodes on their way into a cache: packed while more of them come, as the API server takes its time."""

    def __init__(self) -> None:
        self._texts: List[str] = []
        self._waiting: List[str] = []

    def add(self, facts: Mapping[str, Any]) -> None:
        """facts: without what only a comparison of nodes shows."""
        self._waiting.append(json.dumps(facts))
        if len(self._waiting) == NODES_A_TEXT:
            self._pack()

    def forget(self) -> None:
        """All of them."""
        self._texts, self._waiting = [], []

    def entry(self, question: str, usual: Mapping[str, str], now: float) -> Dict[str, Any]:
        """What the cache is given. question: what the facts answer; usual: see usual_drivers; now: seconds since the
        epoch."""
        self._pack()
        return {"schema": SCHEMA, "question": question, "read": now, "usual": dict(usual), "nodes": self._texts}

    def _pack(self) -> None:
        packed = zlib.compress(("[%s]" % ",".join(self._waiting)).encode(), LEVEL)
        self._texts.append(base64.b64encode(packed).decode())
        self._waiting = []


@dataclass(frozen=True)
class Entry:
    """What a cache has of a question. read: when the cluster was asked; age: how long ago that is, in seconds."""

    read: float
    age: float
    usual: Mapping[str, str]
    texts: Sequence[str]

    def facts(self) -> List[Dict[str, Any]]:
        """With what a comparison of the nodes has shown."""
        facts = [each for text in self.texts for each in json.loads(zlib.decompress(base64.b64decode(text)))]
        return compared(facts, self.usual)


def compared(nodes: List[Dict[str, Any]], usual: Mapping[str, str]) -> List[Dict[str, Any]]:
    """The facts, ordered by name, with what is found by comparing each with what is usual (usual_drivers)."""
    for facts in nodes:
        finding = skew_finding(facts, usual)
        if finding is not None:
            facts["findings"].append(finding.to_dict())
    return sorted(nodes, key=lambda facts: str(facts["name"]))


def found(value: Any, question: str, now: float) -> Optional[Entry]:
    """What answers the question in an entry of the cache; None where it is of another one, or of another release."""
    if not isinstance(value, dict) or (value.get("schema"), value.get("question")) != (SCHEMA, question):
        return None
    # Where a clock was set back, an entry of the future is as old as it is far away
    return Entry(value["read"], abs(now - value["read"]), value["usual"], value["nodes"])
