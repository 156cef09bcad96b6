# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is there of the container runtime: which one it is, and what its kind sees of it."""
from __future__ import annotations

from dataclasses import replace
from typing import Tuple

from ..core.errors import GpuOpsError
from ..core.host import Host
from ..core.journal import Journal
from .detection import find
from .kinds import KINDS
from .model import MEMORY, Problem, RuntimeObservation
from .policy import RuntimePolicy


def observe(host: Host, journal: Journal, policy: RuntimePolicy) -> RuntimeObservation:
    try:
        service = find(host, policy)
    except GpuOpsError as error:
        return RuntimeObservation(None, Problem.of(error))
    if service is None:
        return RuntimeObservation(None, None)
    kind = KINDS.get(service.kind)
    if kind is None:
        return RuntimeObservation(service, Problem(
            "the runtime of this host is %s" % service.kind,
            "one of %s" % ", ".join(sorted(KINDS)), "configure it by other means"))
    try:
        seen = kind.observe(host, journal, policy, service)
    except GpuOpsError as error:
        return RuntimeObservation(service, Problem.of(error))
    if policy.present and seen.problem is None and seen.edits and not service.active:
        return replace(seen, edits=(), problem=Problem(
            "%s is not running" % service.unit, "a running %s, so that a change can be proved" % kind.title,
            "start it: systemctl start %s; journalctl -u %s says why it stopped" % (service.unit, service.unit)))
    return replace(seen, leftover=_leftover(host, journal, policy, seen),
                   restart=service.pid != 0 and journal.recall(MEMORY).get("deaf") == service.pid)


def _leftover(host: Host, journal: Journal, policy: RuntimePolicy, seen: RuntimeObservation) -> Tuple[str, ...]:
    if policy.present or seen.problem is not None:
        return ()
    edited = [edit.path for edit in seen.edits]
    return tuple(original.path for original in journal.originals(MEMORY)
                 if original.path not in edited and host.read_bytes(original.path) == original.content)
