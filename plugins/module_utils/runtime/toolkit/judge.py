# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The observation, with what the installed programs say of the configuration that is to be written."""
from __future__ import annotations

from dataclasses import replace

from ...core.host import Host
from ...core.journal import Journal
from . import observation, planner
from .observation import ToolkitObservation
from .policy import ToolkitPolicy
from .rewriting import objection


def observe(host: Host, journal: Journal, policy: ToolkitPolicy) -> ToolkitObservation:
    """A file that stays as it is, or that another version will read, is not judged."""
    seen = observation.observe(host, journal, policy)
    if not policy.present or not planner.is_installed(seen, policy):
        return seen
    wanted = planner.wanted_configuration(seen, policy)
    return seen if wanted in (None, seen.configuration) else replace(seen, objection=objection(host, wanted or ""))
