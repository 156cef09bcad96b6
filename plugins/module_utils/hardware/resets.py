# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which GPUs this collection has reset, and when: whoever remembers anything of a GPU asks whether it was reset since.

/var/lib/gpuops/resets.json, root's alone: {'schema': 1, 'resets': [the fields of Reset]}, the newest last. The newest
KEPT are kept. A reset is written down before it is tried, and how it ended after it.
"""
from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, replace
from typing import Any, Dict, Iterable, List, Sequence, Tuple

from ..core.errors import GpuOpsError
from ..core.host import Host
from ..core.journal import DIRECTORY

PATH = DIRECTORY + "/resets.json"
SCHEMA = 1
KEPT = 64
# How a reset ended; of one that was killed in between nobody knows. One that was spared was not done, as nothing asked
# for it any more once nobody had the GPUs
BEGUN, DONE, FAILED, SPARED = "begun", "done", "failed", "spared"


@dataclass(frozen=True)
class Reset:
    """One command that reset GPUs.

    number:    counted up from 1.
    boot:      the machine's boot, see Host.boot().
    time:      when it began, in seconds since 1970.
    who:       the capability whose step it was, or who else asked for it.
    why:       as a clause, for people.
    gpus:      UUIDs.
    addresses: of the same GPUs on the PCI bus.
    end:       BEGUN, DONE, FAILED or SPARED.
    """

    number: int
    boot: str
    time: int
    who: str
    why: str
    gpus: Tuple[str, ...]
    addresses: Tuple[str, ...]
    end: str = BEGUN


def resets(host: Host) -> Tuple[Reset, ...]:
    """Those that are kept, oldest first. Raises GpuOpsError where the record cannot be understood: what happened to a
    GPU is then unknown, which is not the same as nothing."""
    text = host.read(PATH)
    if text is None:
        return ()
    try:
        data = json.loads(text)
        if data["schema"] != SCHEMA:
            raise ValueError("schema %s" % data["schema"])
        return tuple(_of(each) for each in data["resets"])
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise GpuOpsError(
            "host.record_of_resets_damaged",
            found="%s cannot be understood: %s" % (PATH, error),
            wanted="the record of resets that this release of the collection has written",
            remedy="use the release that wrote it, or move the file away: which GPUs were reset before is then not "
                   "known") from error


def last_of(known: Iterable[Reset], uuid: str) -> int:
    """The number of the last one of a GPU, 0 without one. One that failed has let the GPU go before, or reset it."""
    return max((each.number for each in known if uuid in each.gpus), default=0)


def begin(host: Host, who: str, why: str, gpus: Sequence[Tuple[str, str]]) -> int:
    """Write down that GPUs are about to be reset; its number. gpus: (UUID, PCI address)."""
    known = resets(host)
    number = known[-1].number + 1 if known else 1
    begun = Reset(number, host.boot(), int(time.time()), who, why, tuple(uuid for uuid, _address in gpus),
                  tuple(address for _uuid, address in gpus))
    _write(host, [*known, begun])
    return number


def end(host: Host, number: int, how: str) -> None:
    _write(host, [replace(each, end=how) if each.number == number else each for each in resets(host)])


def _of(data: Dict[str, Any]) -> Reset:
    return Reset(int(data["number"]), str(data["boot"]), int(data["time"]), str(data["who"]), str(data["why"]),
                 tuple(map(str, data["gpus"])), tuple(map(str, data["addresses"])), str(data["end"]))


def _write(host: Host, known: List[Reset]) -> None:
    host.make_directory(DIRECTORY, 0o700)
    data = {"schema": SCHEMA, "resets": [asdict(each) for each in known[-KEPT:]]}
    host.write(PATH, json.dumps(data, sort_keys=True) + "\n", 0o600)
