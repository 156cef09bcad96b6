# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The driver before the last change, as the journal keeps it, and whether there is a way back to it.

One record, in the journal's memory under MEMORY. It is written before a transaction that exchanges the driver, and only
of a driver that was whole: all its packages of one version, configured, its module built, and no other driver loaded.
A change that stops half way finds no such driver, so that its repetition leaves the record as it is.

Credentials are no part of it, nor are settings of the policy that are no packages, as those of kernel modules.

By 'schema':
  2  as 1, with 'runfile': {'sha256', 'flavour'} of the file of NVIDIA's installer that the driver came from
  1  {'schema': 1, 'version', 'kernel_module', 'url' ('' for the distribution's own sources),
      'packages' {name: version}, 'ours' [names], 'automatic' [names], 'files' {path: text or None}}
"""
from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple

from ..core.errors import GpuOpsError
from ..core.facts import HostFacts
from ..core.journal import Journal
from ..packages.managers import APT, DNF
from ..packages.rpm import database as rpm_database

MEMORY = "driver_record"
SCHEMA = 2
ARCHIVE, REPOSITORY, NONE = "archive", "repository", "none"


@dataclass(frozen=True)
class Record:
    """A driver that was whole.

    version:       of the driver.
    kernel_module: open or proprietary, '' where the module did not tell.
    url:           the repository that was configured by us, '' for the host's own sources.
    packages:      {package: exact version, its epoch included} of all of its family.
    ours:          packages that were on the host because of us then, whatever they are.
    automatic:     those of packages that nobody had chosen by hand.
    files:         {path: text or None} of the files whose whole content is ours; of locks of dnf and zypper ours.
    runfile:       'sha256' and 'flavour' of what NVIDIA's installer brought it from; {} where packages did.
    """

    version: str
    kernel_module: str
    url: str
    packages: Mapping[str, str]
    ours: Tuple[str, ...] = ()
    automatic: Tuple[str, ...] = ()
    files: Mapping[str, Optional[str]] = field(default_factory=dict)
    runfile: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return "driver %s" % self.version

    def to_dict(self) -> Dict[str, Any]:
        told = {**asdict(self), "ours": list(self.ours), "automatic": list(self.automatic)}
        if not self.runfile:
            # Releases before know it so
            del told["runfile"]
        return {"schema": SCHEMA if self.runfile else 1, **told}

    def changed(self, installed: Mapping[str, str], touched: Iterable[str] = ()) -> Dict[str, str]:
        """{package: version} of what has to come again, once a transaction has touched these packages."""
        others = set(touched)
        return {name: version for name, version in self.packages.items()
                if installed.get(name) != version or name in others}

    def is_same_driver(self, other: Record) -> bool:
        """Whether the packages, or the installer's file, are the same, whatever files lie beside them."""
        return (self.version, self.kernel_module, dict(self.packages), dict(self.runfile)) == (
            other.version, other.kernel_module, dict(other.packages), dict(other.runfile))

    def is_in_place(self, installed: Mapping[str, str]) -> bool:
        return not self.changed(installed)


def read(journal: Journal) -> Optional[Record]:
    """The record of this host; None where no driver was exchanged."""
    return of_dict(journal.recall(MEMORY))


def of_dict(told: Mapping[str, Any]) -> Optional[Record]:
    if not told:
        return None
    if told.get("schema") not in (1, SCHEMA):
        raise GpuOpsError(
            "driver.record_of_a_newer_release",
            found="the record of the driver before has schema %s" % told.get("schema"),
            wanted="schema %d" % SCHEMA,
            remedy="a newer release of gpuops.nvidia has worked on this host: use that one or a newer one")
    return Record(told["version"], told["kernel_module"], told["url"], dict(told["packages"]), tuple(told["ours"]),
                  tuple(told["automatic"]), dict(told["files"]), dict(told.get("runfile", {})))


def is_proven(version: str, facts: HostFacts, before: Optional[Record]) -> bool:
    """Whether the installed driver is one to return to: its module is there, and it is the loaded one.

    Where none is loaded, nobody has seen it work: it takes no place of another one that is recorded.
    """
    if version not in (facts.driver_installed, facts.driver_boots):
        return False
    if not facts.driver_loaded:
        return before is None
    return facts.driver_loaded == version and facts.module_loaded in ("", facts.module_installed)


# archives


def is_archived(name: str, version: str, archives: Iterable[str]) -> bool:
    return any(_is_of(archive, name, version) for archive in archives)


def _is_of(archive: str, name: str, version: str) -> bool:
    is_rpm = archive.endswith(".rpm")
    if is_rpm and not rpm_database.is_of_arch(archive, name, version):
        return False
    return archive.lower().startswith((DNF if is_rpm else APT).archive_begins(name, version).lower())


def strangers(archives: Iterable[str], packages: Mapping[str, str]) -> List[str]:
    """Files of other packages, or of other versions."""
    return sorted(archive for archive in archives
                  if not any(_is_of(archive, *package) for package in packages.items()))


def way_back(
    record: Record, needed: Mapping[str, str], archives: Iterable[str], offered: Iterable[str]
) -> Dict[str, Any]:
    """How the driver of a record can be had again: what plans and results call returns_to.

    needed:   {package: version} that would have to come again.
    archives: names of package files on the host.
    offered:  'name=version' of what the sources have.
    """
    kept = list(archives)
    fetched = {name: version for name, version in needed.items() if not is_archived(name, version, kept)}
    sold = set(offered)
    lacking = sorted("%s=%s" % item for item in fetched.items() if "%s=%s" % item not in sold)
    return {
        "version": record.version,
        "kernel_module": record.kernel_module,
        "source": record.url or ("NVIDIA's installer" if record.runfile else "distribution"),
        "how": NONE if lacking else REPOSITORY if fetched else ARCHIVE,
        "why": "neither kept on this host nor offered by a source: %s" % ", ".join(lacking) if lacking else "",
    }
