# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What reading the offer of repositories has in common with dnf and zypper."""
from __future__ import annotations

from dataclasses import replace
from typing import Callable, ContextManager, Dict, List, Mapping, Tuple, TypeVar

from ...core.errors import GpuOpsError
from ...core.facts import HostFacts
from ...core.host import Host
from ...packages import space
from ...packages.manager import Index
from ...packages.model import Simulation
from ...packages.rpm import database
from .. import archive, catalogue
from ..files import repository_of
from ..observation import Observation, Offer, archives_at_hand, key_text
from ..origin import Origin
from ..record import Record, is_archived
from ..target import Target

AnIndex = TypeVar("AnIndex", bound=Index)


def read_with(
    index: Callable[..., ContextManager[AnIndex]], host: Host, observation: Observation, facts: HostFacts,
    origin: Origin, archives: str, offer_of: Callable[[AnIndex], Offer]
) -> Offer:
    """The offer of the driver's repository, beside those of the system; one that cannot be read is told as its error.

    index: opens them, as the package manager has it; archives: where that keeps what it fetches.
    """
    key = ""
    try:
        key = key_text(host, observation, origin, facts)
        with index(host, [repository_of(origin, key)], beside_system=True) as opened:
            offer = offer_of(opened)
            room = space.observe(host, archives) if offer.transaction else None
            return replace(offer, key=key, unread=opened.unread, without=opened.without, space=room)
    except GpuOpsError as error:
        return Offer(error=error.found, key=key)


def there_and_before(opened: Index, observation: Observation) -> Tuple[str, ...]:
    """What repositories have of the driver that is there, and of the recorded one before it."""
    return returnable(
        opened, [catalogue.family(observation.installed), observation.record.packages if observation.record else {}])


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
