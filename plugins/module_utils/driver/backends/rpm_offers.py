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
from ...packages.manager import Index, PackageManager
from ...packages.model import Simulation
from ...packages.rpm import database
from .. import archive, catalogue
from ..files import repository_of
from ..observation import Observation, Offer, archives_at_hand, goes_down, key_text, superfluous
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
    named = {(name, version): database.without_version(name, version)
             for driver in drivers for name, version in driver.items()}
    offered = opened.versions(named.values())
    return tuple(sorted("%s=%s" % each for each, name in named.items() if each[1] in offered[name]))


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


def offer_back(
    opened: Index, manager: PackageManager, host: Host, observation: Observation, record: Record,
    files: Mapping[str, str], archives: str,
    simulated: Callable[[Mapping[str, str], bool, Mapping[str, str], Mapping[str, str]], Simulation]
) -> Offer:
    """What brings the recorded driver back; under what is held in the index by now.

    files:     of at_hand().
    archives:  where the manager keeps what it fetches.
    simulated: what a transaction would do that asks for these versions, whether one may go down, with those of these
               files, and without these packages.
    """
    needed = record.changed(observation.installed)
    offered = {*returnable(opened, [record.packages]), *("%s=%s" % (name, record.packages[name]) for name in files)}
    offer = Offer(returnable=tuple(sorted(offered)), unread=opened.unread, without=opened.without)
    if not all("%s=%s" % each in offered for each in needed.items()):
        return offer
    kept = {name: path for name, path in files.items() if name in needed}
    goes = goes_down(observation.installed, needed, manager.compare)
    transaction = without_leftovers(
        simulated(needed, goes, kept, {}), observation, needed) if needed else None
    removes = transaction.removes if transaction else ()
    names = {name: version for name, version in superfluous(observation, record).items() if name not in removes}
    both = simulated(needed, goes, kept, names) if names else None
    can_go = both is not None and not both.problem and set(both.removes) <= {*names, *removes}
    return replace(offer, transaction=transaction, superfluous=names if can_go else {}, at_hand=kept,
                   space=space.observe(host, archives) if transaction else None)
