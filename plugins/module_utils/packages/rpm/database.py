# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The one reader of rpm's database.

rpm adds the version that comes, a newer or an older one, before it erases the one before (rpm's psm.c, dbAdd()).
Stopped in between, both are there: the one that came last has its files in the place of those of the other, which is a
leftover. One that was stopped while it installed a package once more leaves it there twice. A package that may be there
in several versions, a kernel, says so by what it provides (dnf.conf(5), installonlypkgs), and is none.

What SUSE's packages of kernel modules are for, their version alone tells, as it has the kernel's in it (Kernel Module
Packages Manual). So their names have it, whether they may be there in several versions or not: of one name, the same
source has had some that say so and, later, some that do not.
"""
from __future__ import annotations

import functools
import re
from typing import AbstractSet, Container, Dict, FrozenSet, Iterable, List, Mapping, Optional, Tuple

from ...core.host import CommandFailed, CommandResult, Host, Stamps
from ..model import Package
from .versions import joined, newest_first

# The first that is there counts: rpm moved its database when /usr became the place of what belongs to the system
PLACES = ("/usr/lib/sysimage/rpm", "/var/lib/rpm")
_STAMPED = ("rpmdb.sqlite", "Packages.db")
FILES = (*_STAMPED, "Packages")
LEFTOVER = "duplicate"
# dnf.conf(5), installonlypkgs; zypp.conf, multiversion
_SEVERAL = ("kernel", "kernel-PAE", "installonlypkg(kernel)", "installonlypkg(kernel-module)", "installonlypkg(vm)",
            "multiversion(kernel)")
# 'app-kmp-default-1.0_k6.4.0_150700.51-1.1'
_OF_KERNEL = re.compile(r"-kmp-[^-]+-[^-]+_k\d[^-]*-[^-]+$")
_SECOND = ("i386", "i486", "i586", "i686", "s390")
_KEY = "gpg-pubkey"
# The number of a record grows within a second too, and may be another one once the database was rebuilt. rpm 4.14 of
# EL 8 and SLES 15 has both (rpmtag.h)
_CAME = "%|INSTALLTIME?{%{INSTALLTIME}}:{0}|\\t%{DBINSTANCE}"
_FORMAT = _CAME + "\\t%{NAME}\\t%{ARCH}\\t%|EPOCH?{%{EPOCH}}:{0}|\\t%{VERSION}\\t%{RELEASE}\\n"
Row = Tuple[str, str, str]


def directory(host: Host) -> str:
    """Where the database lies, '' where there is none."""
    return next((place for place in PLACES if any(host.exists("%s/%s" % (place, name)) for name in FILES)), "")


def own(host: Host) -> List[str]:
    """Words that make rpm read this host's own database."""
    return [] if host.root == "/" else ["--dbpath=" + host.path(directory(host) or PLACES[-1])]


def changing(host: Host) -> List[str]:
    """Words that make rpm change this host: its files and scripts lie below the root too."""
    return [] if host.root == "/" else ["--root=" + host.root, "--dbpath=" + (directory(host) or PLACES[-1])]


def installed(host: Host) -> Dict[str, Package]:
    """Every package of the database by name, keys left out; empty where there is no database.

    One of a second architecture has it in its name ('libdrm.i686'), one that may be there in several versions has its
    version there ('kernel-core-5.14.0-611.el9'), and so have SUSE's kernel modules and a leftover; dnf takes both.
    Raises CommandFailed when rpm cannot tell: a database that cannot be read is not one without packages.
    """
    if not directory(host):
        return {}
    as_it_is = stamps(host)
    return dict(_installed(host, as_it_is) if as_it_is else _installed.__wrapped__(host, as_it_is))


def stamps(host: Host) -> Stamps:
    """Tell the database, as it is, from what it becomes; () where its files do not tell.

    Berkeley DB shares in memory what it has not written yet, and so does SQLite for a moment while its log has
    something in it. Of several databases rpm's configuration says which is meant; one place may be a link to the other.
    """
    paths = ["%s/%s" % (place, name) for place in PLACES for name in FILES]
    there = {(found.st_dev, found.st_ino): path for path in paths for found in [host.stat(path)] if found is not None}
    if len(there) != 1:
        return ()
    (path,) = there.values()
    log = host.stat(path + "-wal")
    return host.stamps(path) if path.endswith(_STAMPED) and not (log and log.st_size) else ()


# A plan asks by the dozen, and of a thousand packages each answer takes the better part of a second
@functools.lru_cache(maxsize=1)
def _installed(host: Host, _as_it_is: Stamps) -> Dict[str, Package]:
    rows = parse(_query(host, "-qa", "--qf", _FORMAT).stdout)
    return named(rows, _several(host))


def came_since(host: Host, names: Iterable[str], when: float) -> FrozenSet[str]:
    """Those of these packages that rpm has installed since (seconds since 1970)."""
    rows = [line.split("\t") for line in _query(host, "-qa", "--qf", _FORMAT).stdout.splitlines()]
    came = {each for seconds, _number, name, arch, epoch, version, release in rows if int(seconds) >= when
            for each in names_of(short_name(name, arch), joined(epoch, version, release))}
    return frozenset(came.intersection(names))


def parse(listing: str) -> List[Row]:
    """(name, architecture, version) of each line of rpm's answer, what came last at the end."""
    rows = []
    for line in listing.splitlines():
        seconds, number, name, arch, epoch, version, release = line.split("\t")
        if name != _KEY:
            rows.append((int(seconds), int(number), (name, arch, joined(epoch, version, release))))
    return [row for _seconds, _number, row in sorted(rows)]


def named(rows: Iterable[Row], several: AbstractSet[Row] = frozenset()) -> Dict[str, Package]:
    """Packages by names that tell them apart.

    rows: what came last at the end; several: those of them that may be there beside others.
    """
    there: Dict[Tuple[str, str], List[str]] = {}
    for name, arch, version in rows:
        there.setdefault((name, arch), []).append(version)
    packages = {}
    for (name, arch), all_of_it in there.items():
        short = short_name(name, arch)
        together = all((name, arch, version) in several for version in all_of_it)
        first, *others = newest_first(all_of_it) if together else reversed(all_of_it)
        longer = long_name(short, first)
        has_version = (name, arch, first) in several or (has_kernel(longer) and first not in others)
        called = longer if has_version else short
        packages[called] = Package(called, arch, first, "install", "installed")
        for version in others:
            longer = long_name(short, version)
            packages[longer] = Package(longer, arch, version, "install",
                                       "installed" if (name, arch, version) in several else LEFTOVER)
    return packages


def has_kernel(longer: str) -> bool:
    """Whether a package is one of SUSE's of kernel modules, by its name with its version."""
    return _OF_KERNEL.search(longer) is not None


def short_name(name: str, arch: str) -> str:
    """With the architecture where it is the second one of a 64-bit system."""
    return "%s.%s" % (name, arch) if arch in _SECOND else name


def bare_name(short: str) -> str:
    """Without the architecture."""
    name, dot, arch = short.rpartition(".")
    return name if dot and arch in _SECOND else short


def long_name(short: str, version: str) -> str:
    """With the version, where one of that name is there besides; without the epoch, as files and dnf have it."""
    return "%s-%s" % (short, version.split(":")[-1])


def names_of(short: str, version: str) -> Tuple[str, str]:
    """What a package may be called, alone and as one of several versions."""
    return short, long_name(short, version)


def without_version(name: str, version: str) -> str:
    """The name of a package, one of several versions included."""
    ending = long_name("", version)
    return name[:-len(ending)] if name.endswith(ending) else name


def archive_begins(name: str, version: str) -> str:
    """How the name of a package's file begins."""
    return long_name(bare_name(without_version(name, version)), version) + "."


def is_of_arch(archive: str, name: str, version: str) -> bool:
    """Whether a package's file is of its architecture: files of two differ at the ends of their names alone."""
    short = without_version(name, version)
    return short == short_name(bare_name(short), archive.rsplit(".", 2)[1])


def whole_files(host: Host, files: Mapping[str, str]) -> Dict[str, str]:
    """{package: path} of those package files that rpm can read to their end, as they are called on this system."""
    paths = {name: host.path(path) for name, path in files.items()}
    return {name: path for name, path in paths.items() if host.run(
        ["rpm", "--checksig", "--nosignature", path], check=False, timeout=600).rc == 0}


def several(packages: Mapping[str, Package]) -> FrozenSet[str]:
    """Short names of those packages of a database whose names have their version."""
    return frozenset(without_version(name, package.version) for name, package in packages.items()
                     if package.state != LEFTOVER and without_version(name, package.version) != name)


def called(packages: Mapping[str, Package], short: str, version: str) -> str:
    """What the database calls a package in this version, its short name where it has none such, or has it twice."""
    longer = long_name(short, version)
    return longer if longer in packages and packages[longer].version == version and not _is_second(
        packages, longer) else short


def going(packages: Mapping[str, Package], short: str, version: str, gone: Container[str]) -> str:
    """What the database calls a package that leaves; gone: the names of those before it. Of one that is there twice the
    leftover goes first."""
    longer = long_name(short, version)
    return longer if longer in packages and packages[longer].version == version and longer not in gone else short


def leftovers(packages: Mapping[str, Package]) -> Tuple[str, ...]:
    """Names of what an interrupted transaction has not erased, and what came has taken the place of."""
    return tuple(sorted(name for name, package in packages.items()
                        if package.state == LEFTOVER and not _is_second(packages, name)))


def twice(packages: Mapping[str, Package]) -> Dict[str, str]:
    """{package: version} of what is there twice. rpm cannot tell the two where one is to be erased, and erases both as
    it installs the package once more (rpm's depends.c, addSelfErasures())."""
    names = (without_version(name, packages[name].version) for name in packages if _is_second(packages, name))
    return {name: packages[name].version for name in names}


def _is_second(packages: Mapping[str, Package], name: str) -> bool:
    """Whether it is a leftover that rpm takes for the package itself: it looks for names without epochs."""
    short = without_version(name, packages[name].version)
    return packages[name].state == LEFTOVER and short in packages and (
        long_name(short, packages[short].version) == name)


def labels(packages: Mapping[str, Package], names: Iterable[str]) -> List[str]:
    """What rpm calls leftovers ('libdrm-2.4-1.i686'), so that it finds none of another version or architecture."""
    return ["%s.%s" % (archive_begins(name, packages[name].version)[:-1], packages[name].arch) for name in names]


def versions(packages: Mapping[str, Package], names: Iterable[str]) -> Dict[str, Optional[str]]:
    """Installed version of each, None when it is not installed."""
    return {name: packages[name].version if name in packages and packages[name].installed else None
            for name in sorted(set(names))}


def _several(host: Host) -> FrozenSet[Row]:
    """Those packages that may be there in several versions."""
    done = host.run(["rpm", *own(host), "-q", "--qf", _FORMAT, "--whatprovides", *_SEVERAL], check=False)
    # It ends with the number of those that nothing provides, and says so of each in a line of its own. Where it fails,
    # kernels would be taken for leftovers
    if not 0 <= done.rc <= len(_SEVERAL) or re.search(r"(?m)^error: ", done.stderr):
        raise _unreadable(done)
    return frozenset(parse("".join(line for line in done.stdout.splitlines(True) if "\t" in line)))


def _query(host: Host, *words: str) -> CommandResult:
    done = host.run(["rpm", *own(host), *words], check=False)
    if done.rc != 0:
        raise _unreadable(done)
    return done


def _unreadable(done: CommandResult) -> CommandFailed:
    return CommandFailed(
        "packages.rpm_database_unreadable",
        found="rpm ended with %d: %s" % (done.rc, " | ".join(done.stderr.split("\n")[:2]) or "no output"),
        wanted="the packages of this host",
        remedy="mend rpm's database (`rpm --rebuilddb`), and run again",
        cmd=list(done.argv), rc=done.rc, stdout=done.stdout, stderr=done.stderr,
    )
