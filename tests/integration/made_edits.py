# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Edits of a container runtime's files: worked out and judged as a run does it, and made without a journal's steps."""
from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Iterable, Optional, Tuple

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError


@dataclass(frozen=True)
class WorkedOut:
    """
    observation: what the backend has read, None where it could not read.
    edits:       what it would change, once the runtime's own program has judged it.
    refusal:     why it changes nothing instead, None if it does not refuse.
    """

    observation: Any
    edits: Tuple[Any, ...] = ()
    refusal: Optional[Any] = None


def work_out(backend: Any, host: Any, journal: Any, policy: Any, service: Any) -> WorkedOut:
    """Observe, plan, judge. Whether the runtime is active is left to the planner, whose refusal that is."""
    observation = None
    try:
        observation = backend.observe(host, journal, policy, service)
        edits = backend.edits(service, observation.reading, policy)
        if edits or observation.pending:
            backend.judge(host, service, observation.reading, policy)
    except GpuOpsError as error:
        return WorkedOut(observation, (), error.refusals[0])
    return WorkedOut(observation, edits)


def make(backend: Any, host: Any, edits: Iterable[Any]) -> None:
    """Each edit is worked out again on the file, from parameters that have been through JSON."""
    for edit in edits:
        text = edit.after
        if edit.parameters:
            text = backend.edited(edit.path, host.read(edit.path), json.loads(json.dumps(edit.parameters)))
            assert text == edit.after
        if text is None:
            host.remove(edit.path)
        else:
            host.write(edit.path, text)
