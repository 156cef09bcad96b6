# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What of ours can go without anything of others: of dpkg's database as a text, and of a manager that cannot tell."""
from __future__ import annotations

import signal
import subprocess
from typing import Any, Dict, Iterable, List, Set, Tuple

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as some
from scratch_apt import Root

from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.apt import database
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.apt.removal import going, needs, removable
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.model import Package, Simulation
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.rpm import removal as of_rpm


def stanza(name: str, depends: str = "", state: str = "install ok installed", **fields: str) -> str:
    told = {"Package": name, "Status": state, "Maintainer": "t <t@gpuops.invalid>", "Architecture": "amd64",
            "Version": "1", "Depends": depends, "Description": "a test", **fields}
    return "".join("%s: %s\n" % (field.replace("_", "-"), value) for field, value in told.items() if value)


def told(status: str, native: str = "amd64") -> Dict[str, Package]:
    """The packages of a database."""
    packages = {}
    for each in status.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in each.splitlines())
        _wanted, flag, state = fields["Status"].split()
        name = database.full_name(fields["Package"], fields["Architecture"], native)
        packages[name] = Package(name, fields["Architecture"], fields["Version"], "install", state, flag == "reinstreq")
    return packages


def goes(stanzas: Iterable[str], *ours: str, native: str = "amd64") -> Tuple[str, ...]:
    status = "\n".join(stanzas)
    return going(needs(status, told(status, native), frozenset(ours), native), frozenset(ours))


@pytest.mark.parametrize("depends", [
    "dkms", "dkms (>= 1)", "dkms:any", "libc6, dkms (<< 2) [ignored", "gone | dkms", "dkms (>= 9)", "module-builder",
    "module-builder (= 3)", "dkms | other (>= 2)", "dkms|other:i386"])
def test_what_somebodys_package_needs_stays(depends: str) -> None:
    there = [stanza("dkms", Provides="module-builder (= 3)"), stanza("libc6"), stanza("other"),
             stanza("builder", depends)]
    assert goes(there, "dkms") == ()


@pytest.mark.parametrize("depends", ["libc6", "dkms | libc6", "other (>= 0.9) | dkms", "builders | dkms", "dkms-more"])
def test_what_others_can_do_without_goes(depends: str) -> None:
    there = [stanza("dkms"), stanza("libc6"), stanza("other", Provides="builders"), stanza("builder", depends)]
    assert goes(there, "dkms") == ("dkms",)


def test_one_of_another_architecture_does_not_stand_in_unless_it_says_so() -> None:
    for several, left in (("", ()), ("same", ()), ("foreign", ("dkms",))):
        there = [stanza("dkms"), stanza("other", Architecture="i386", Multi_Arch=several),
                 stanza("builder", "dkms | other")]
        assert goes(there, "dkms") == left


@pytest.mark.parametrize("several, depends, left", [
    ("foreign", "tool:any | dkms", ()), ("", "tool:any | dkms", ()), ("allowed", "tool:any | dkms", ("dkms",)),
    ("foreign", "tool:i386 | dkms", ()), ("foreign", "tool:amd64 | dkms", ("dkms",))])
@pytest.mark.parametrize("native", ["amd64", ""])
def test_where_a_dependency_names_an_architecture_nothing_else_counts(
    several: str, depends: str, left: Tuple[str, ...], native: str
) -> None:
    there = [stanza("dkms"), stanza("tool", Multi_Arch=several), stanza("his", depends)]
    assert goes(there, "dkms", native=native) == left


def test_what_takes_ours_along_that_somebody_needs_stays_too() -> None:
    there = [stanza("dkms"), stanza("driver", "dkms"), stanza("his", Pre_Depends="driver"), stanza("tool")]
    assert goes(there, "dkms", "driver", "tool") == ("tool",)


@pytest.mark.parametrize("state", ["install reinstreq half-installed", "install ok unpacked",
                                   "install ok half-configured"])
def test_what_is_half_there_counts_as_there(state: str) -> None:
    """Of ours what somebody needs stays, whatever the state; and what of others is half there meets no need."""
    there = [stanza("dkms", state=state), stanza("builder", "dkms"), stanza("driver", "gone", state)]
    assert goes(there, "dkms", "driver") == ("driver",)
    there = [stanza("dkms"), stanza("other", state=state), stanza("builder", "dkms | other")]
    assert goes(there, "dkms") == ()


NAMES = ("a", "b", "c", "d", "e", "f")
RELATIONS = some.builds("{}{}".format, some.sampled_from(NAMES), some.sampled_from(("", "", "", ":any", ":i386")))
# {package: (architecture and whom it serves, what it depends on)}
WORLDS = some.dictionaries(some.sampled_from(NAMES), some.tuples(
    some.sampled_from(({}, {}, {"Architecture": "all"}, {"Architecture": "i386"}, {"Multi_Arch": "foreign"},
                       {"Multi_Arch": "allowed"}, {"Architecture": "i386", "Multi_Arch": "foreign"})),
    some.lists(some.lists(RELATIONS, min_size=1, max_size=2, unique=True), max_size=2)), min_size=2)


def consistent(world: Any) -> List[str]:
    """The stanzas of those whose dependencies are met beyond doubt, each by another one."""
    world = {name: (fields, [group for group in groups if name not in [each[0] for each in group]])
             for name, (fields, groups) in world.items()}
    there = {name: stanza(name, ", ".join(" | ".join(group) for group in groups), **fields)
             for name, (fields, groups) in world.items()}
    while there:
        status = "\n".join(there.values())
        found = needs(status, told(status), frozenset(told(status)), "amd64")
        met = [need.of.split(":")[0] for need in found if need.do]
        broken = [name for name in there if met.count(name) < len(world[name][1])]
        if not broken:
            break
        there = {name: text for name, text in there.items() if name not in broken}
    return list(there.values())


@pytest.mark.variation
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(world=WORLDS, ours=some.sets(some.sampled_from(NAMES), min_size=1))
def test_apt_removes_nothing_of_others_with_what_can_go(root: Root, world: Any, ours: Any) -> None:
    """Of every host whose dependencies are met."""
    root.write("var/lib/dpkg/arch", "amd64\ni386\n")
    root.write("var/lib/dpkg/status", "\n".join(consistent(world)))
    here = sorted(name for name in root.packages() if name.split(":")[0] in ours)

    def removed(*names: str) -> Set[str]:
        # Its caches tell one database from the next by the second
        done = subprocess.run(["apt-get", *database.own(root.host), "-s", "-o", "Debug::NoLocking=1", "-o",
                               "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache=", "-o",
                               "APT::Architecture=amd64", "-o", "APT::Architectures::=amd64", "-o",
                               "APT::Architectures::=i386", "remove", *names],
                              capture_output=True, text=True)
        # apt itself ends so where several names of a group are unknown to it
        assume(done.returncode != -signal.SIGSEGV)
        assert done.returncode == 0, done.stderr
        return {line.split()[1] for line in done.stdout.splitlines() if line.startswith("Remv ")}

    found = removable(root.host, root.packages(), here)
    assert not found or removed(*found) <= set(here)
    for name in set(here).difference(found):
        assert not removed(*found, name) <= set(here), "%s could go" % name


class Refusing:
    """A manager that refuses to remove something."""

    def __init__(self, *names: str) -> None:
        self._names = set(names)

    def simulate_removal(self, packages: Iterable[str]) -> Simulation:
        return Simulation({}, (), "it is protected") if self._names.intersection(packages) \
            else Simulation({}, tuple(packages))


def test_what_dnf_or_zypper_refuses_to_remove_stays() -> None:
    packages = {name: Package(name, "noarch", "1", "install", "installed") for name in ("dkms", "driver")}
    opened: Any = Refusing("dkms")
    assert of_rpm.removable(opened, packages, packages) == ("driver",)
