# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What became of a host at its boot: /run/gpuops/boot.json, root's alone.

  {'schema': 1, 'state': one of STATES, 'reason': why it failed, 'since', 'until': seconds since the epoch,
   'process': [id, when it started] of who writes it}

It goes with the boot, as /run does. One that still says 'working' and whose process has ended was cut off, and has
failed.
"""
from __future__ import annotations

import contextlib
import json
import os
import time
from typing import Any, Callable, Dict, List, Mapping, Optional

from .errors import GpuOpsError
from .host import Host
from .lock import DIRECTORY, GUARD
from .secrets import hidden

PATH = DIRECTORY + "/boot.json"
SCHEMA = 1
# 'late' is a boot that is over: a kubelet has run since, and nothing was done
WORKING, VALIDATED, FAILED, NO_GPUS, LATE = STATES = ("working", "validated", "failed", "no_gpus", "late")

CUT_OFF = {"state": FAILED, "reason": "it was ended before it was done; its time may be over"}


def begin(host: Host) -> float:
    """Say that it is at work; when that was."""
    since = time.time()
    _write(host, lambda _found: {"state": WORKING, "reason": "", "since": since, "until": None,
                                 "process": _process(host)})
    return since


def end(host: Host, since: float, state: str, reason: str) -> None:
    """Of two that were started, the end of the one that began last counts."""
    _write(host, lambda found: None if found.get("state") == WORKING and found["process"] != _process(host) else {
        "state": state, "reason": hidden(reason), "since": since, "until": time.time()})


def settle(host: Host) -> None:
    """A boot that has failed says nothing of a host that was validated since."""
    _write(host, lambda found: {
        "state": VALIDATED, "reason": "", "since": found.get("since") or 0, "until": time.time(),
    } if found.get("state") == FAILED else None)


def read(host: Host) -> Dict[str, Any]:
    """{} where nothing was written since the boot, or where it is of another release."""
    with contextlib.suppress(ValueError, TypeError, KeyError, GpuOpsError):
        found = json.loads(host.read(PATH) or "{}")
        if isinstance(found, dict) and found.get("schema") == SCHEMA:
            return {**found, **CUT_OFF} if found["state"] == WORKING and not _works(host, found) else found
    return {}


def _works(host: Host, found: Mapping[str, Any]) -> bool:
    process, started = found["process"]
    return bool(started) and host.process_started(int(process)) == started


def _process(host: Host) -> List[Any]:
    process = os.getpid()
    return [process, host.process_started(process)]


def _write(host: Host, told: Callable[[Mapping[str, Any]], Optional[Dict[str, Any]]]) -> None:
    """told: what there is to be, of what there is; None to leave it. That it cannot be told is no reason to leave the
    host as it is."""
    with contextlib.suppress(GpuOpsError):
        host.make_directory(DIRECTORY, 0o700)
        with host.guard(GUARD):
            found = told(read(host))
            if found is not None:
                host.write(PATH, json.dumps({"schema": SCHEMA, **found}, sort_keys=True) + "\n", 0o600)
