# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the sources have of the modules beside the driver's, and the transaction that brings them.

It follows the driver's own: what builds such a module finds the driver's source and its module by then. So it is
simulated together with that one, and has what the two bring beyond it.
"""
from __future__ import annotations

from dataclasses import replace
from typing import Dict, List, Mapping, Optional, Sequence

from ..packages.apt.index import Index
from ..packages.model import Simulation


def peer_versions(opened: Index, names: Sequence[str], uri: str) -> Dict[str, List[str]]:
    """{package: versions}, that first which is taken: the newest of a repository, of a host's own sources the one that
    apt would choose."""
    versions = opened.versions(names, uri)
    if uri or not names:
        return versions
    chosen = {name: found.candidate for name, found in opened.preference(names).items()}
    return {name: sorted(offered, key=lambda version, name=name: version != chosen.get(name))  # type: ignore[misc]
            for name, offered in versions.items()}


def peer_transaction(
    opened: Index, versions: Mapping[str, Sequence[str]], driver: Optional[Simulation]
) -> Optional[Simulation]:
    """None where nothing is missing, or a source does not have all of it."""
    if not versions or not all(versions.values()) or (driver and driver.problem):
        return None
    request = {name: offered[0] for name, offered in versions.items()}
    if driver is None:
        return opened.simulate(request)
    return beyond(opened.simulate({**driver.request, **request}, driver.allow_downgrade), driver, request)


def beyond(both: Simulation, driver: Simulation, request: Mapping[str, str]) -> Simulation:
    """What a transaction does that follows another one."""
    return replace(
        both, request=dict(request), allow_downgrade=False,
        installs={name: version for name, version in both.installs.items() if driver.installs.get(name) != version},
        removes=tuple(name for name in both.removes if name not in driver.removes))
