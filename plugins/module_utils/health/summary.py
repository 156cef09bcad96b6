# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What anybody may read of a host's health: no names of processes, no lines of the log. Pure."""
from __future__ import annotations

from typing import Any, Dict, List

from ..hardware.recovery import LADDER, REMEDIES
from .catalogue import KINDS, VERSION
from .findings import Finding
from .model import State

SCHEMA = 1


def summary(state: State) -> Dict[str, Any]:
    """As JSON; docs/health.md has its keys."""
    return {
        "schema": SCHEMA, "catalogue": VERSION, "boot": state.boot, "looked": round(state.at, 3),
        "verdict": state.verdict, "remedy": state.remedy, "findings": [_told(each) for each in by_weight(state)],
        "unknown": [{"what": what, "since": round(each.since, 3), "text": each.text}
                    for what, each in sorted(state.unknown.items())],
    }


def by_weight(state: State) -> List[Finding]:
    """Open findings, the worst first, and of those the latest."""
    return sorted(state.findings.values(), key=lambda each: (
        -KINDS.index(each.kind), -LADDER.index(each.remedy), -each.last.at, each.key))


def _told(finding: Finding) -> Dict[str, Any]:
    subject = finding.subject
    return {
        "key": finding.key, "subject": subject.kind, "uuid": subject.uuid, "serial": subject.serial,
        "pci_address": subject.address,
        "named": subject.named(), "source": finding.source, "code": finding.code, "kind": finding.kind,
        "remedy": finding.remedy, "to_do": REMEDIES[finding.remedy], "check": finding.check, "text": finding.text,
        "count": finding.count, "first": round(finding.first.at, 3), "last": round(finding.last.at, 3),
        "mended": finding.mended,
    }
