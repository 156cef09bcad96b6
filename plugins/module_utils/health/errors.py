# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The errors that GPUs and NVSwitches have had since the boot, from the kernel's log: told, and not judged."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Iterable, List, Mapping, Tuple

from ..core.host import Host
from ..hardware.recovery import REMEDIES
from .catalogue import meaning_of
from .kernel_log import Event, Record, gaps, parse_events, parse_record, parse_uuids

# A GPU may write hundreds of thousands of lines of one error: it is told once, with their number
MOST = 200


@dataclass(frozen=True)
class _Same:
    """Events of one number and one place, the last of them, how many, and when the first was."""

    last: Event
    count: int
    first_at: int


def read_errors(host: Host, gpus: Iterable[Mapping[str, Any]] = ()) -> Dict[str, Any]:
    """{'errors', 'complete'}: see told(). complete is None where the log cannot be read. gpus: of NVML's reading."""
    texts = host.kernel_log()
    if not texts:
        return {"errors": [], "complete": None}
    records = [record for record in map(parse_record, texts) if record is not None]
    return told(records, {gpu["pci_address"]: gpu["compute_capability"] for gpu in gpus})


def told(records: List[Record], capabilities: Mapping[str, str]) -> Dict[str, Any]:
    """{'errors', 'complete'}. complete: whether the log goes back to the boot, so that none can be missing.
    capabilities: CUDA's, by the addresses of GPUs."""
    uuids = parse_uuids(records)
    same: Dict[Tuple[Any, ...], _Same] = {}
    for event in parse_events(records):
        key = (event.address, event.number, event.is_switch, event.instance, event.is_fatal)
        before = same.get(key)
        same[key] = _Same(event, 1, event.at) if before is None else _Same(event, before.count + 1, before.first_at)
    errors = sorted(same.values(), key=lambda each: each.last.at)
    return {
        "errors": [_error(each, uuids, capabilities) for each in errors[-MOST:]],
        "complete": not gaps((record.sequence for record in records), -1),
    }


def _error(each: _Same, uuids: Mapping[str, str], capabilities: Mapping[str, str]) -> Dict[str, Any]:
    event = each.last
    meaning = meaning_of(event, {}, capabilities.get(event.address, ""))
    return {
        "pci_address": event.address,
        "uuid": uuids.get(event.address, ""),
        "xid": None if event.is_switch else event.number,
        "sxid": event.number if event.is_switch else None,
        "meaning": meaning.text,
        "kind": meaning.kind,
        "remedy": REMEDIES[meaning.remedy],
        "count": each.count,
        "first_seconds": each.first_at // 1000000,
        "last_seconds": event.at // 1000000,
        "process": event.process,
        "caused_by": event.previous or None,
        "text": event.text,
    }
