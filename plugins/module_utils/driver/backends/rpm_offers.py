# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What reading the offer of repositories has in common with dnf and zypper."""
from __future__ import annotations

from dataclasses import replace
from typing import Dict, List, Mapping, Tuple

from ...core.host import Host
from ...packages.manager import Index
from ...packages.model import Simulation
from ...packages.rpm import database
from .. import archive, catalogue
from ..observation import Observation, archives_at_hand
from ..record import Record, is_archived
from ..target import Target


def returnable(opened: Index, drivers: List[Mapping[str, str]]) -> Tuple[str, ...]:
    """'name=version' of what repositories have of these drivers."""
    offered = opened.versions({name for driver in drivers for name in driver})
    return tuple(sorted({"%s=%s" % (name, version) for driver in drivers for name, version in driver.items()
                         if version in offered[name]}))


def whole_request(
    observation: Observation, target: Target, draft: Simulation, request: Mapping[str, str],
    versions: Mapping[str, List[str]]
) -> Dict[str, str]:
    """The request with what of the driver nothing else needs (nvidia-settings): it would stay at the version before."""
    family = catalogue.family(observation.installed, target.packages.floating)
    others = {name: target.package_version(name, versions) for name in family
              if name not in draft.installs and name not in draft.removes and name not in request}
    return {**{name: version for name, version in others.items() if version}, **request}


def without_leftovers(done: Simulation, observation: Observation, request: Mapping[str, str]) -> Simulation:
    """What a stopped transaction had not erased is there while the manager is asked, and gone when the transaction
    begins."""
    left = {database.without_version(name, version): version
            for name, version in observation.of_rpm.left.leftovers.items()}
    again = {name: version for name, version in left.items()
             if request.get(name) == version and observation.installed.get(name) not in (None, version)}
    return replace(done, installs={**done.installs, **again},
                   before={**done.before, **{name: observation.installed[name] for name in again}})


def at_hand(host: Host, observation: Observation, record: Record) -> Dict[str, str]:
    """{package: its file in our store, where it will be by then}."""
    files = archives_at_hand(observation)
    return {name: host.path("%s/%s" % (archive.STORE, next(each for each in files if is_archived(
        name, version, [each])))) for name, version in record.packages.items() if is_archived(name, version, files)}
