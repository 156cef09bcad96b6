# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Six months in the life of a host, in fast motion, drawn from a seed: what an admin does, and our runs between it.

There are two hosts. What the admin does happens on both, what we do on one alone. Once we have gone, both must be the
same: the twin knows what the admin made, without anybody having to foretell it.
"""
from __future__ import annotations

import random
import re
import subprocess
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Set, Tuple

import host_cuts
from laboratory import OTHERS_OWN, Fleet, different

from gpulab.processes import LabError
from gpulab.topology import Topology, parse

OURS, TWIN = "gpu", "twin"
OLD, NEW = "580.178.04", "595.91.07"
DAYS = 180
# Debian packages that admins ask for, most of which a driver that is built on the host needs too
TOOLS = ("make", "mokutil", "patch", "bzip2", "xz-utils", "fakeroot", "lsb-release")
HELD = ("containerd", "openssh-server", "sudo")
KERNEL = "6.1.0-50-amd64"
MOST_SHOWN = 20
SWEEP = "apt-get -qq -y -o APT::AutoRemove::SuggestsImportant=false autoremove --purge >/dev/null"
UPDATE_SUITE = "/etc/apt/sources.list.d/update.sources"
APT_FAILS = "/etc/apt/apt.conf.d/99-fails"

# Names and keys of its own that each host has, and images of initramfs-tools, in which there are times.
OF_A_HOST = re.compile(r"/etc/(hostname|hosts|machine-id|ssh/ssh_host_.*|gpulab.*)|/boot/initrd\.img-.*")


def topology() -> Topology:
    return parse({"name": "life", "control_plane": False, "hosts": [
        {"name": name, "board": "h100-sxm-hgx", "gpus": 2, "disk": True} for name in (OURS, TWIN)]}, __file__)


@dataclass
class Admin:
    """What the admin has made so far: what may be done next depends on it."""

    installed: List[str] = field(default_factory=list)
    held: List[str] = field(default_factory=list)
    files: List[str] = field(default_factory=list)
    kernel: bool = False


class Life:
    def __init__(self, fleet: Fleet, seed: int, chapters: int) -> None:
        self.fleet = fleet
        self.chance = random.Random(seed)
        self.chapters = chapters
        self.admin = Admin()
        self.told: List[str] = []
        self.day = 0
        self.version: Optional[str] = None

    def live(self) -> List[str]:
        """Live all of it, uninstall at its end and compare; what was done, day by day.

        Raises AssertionError with the whole life where a run ends otherwise than it must, or the hosts differ.
        """
        on_both("apt-get -qq update", self.fleet)
        try:
            for number in range(self.chapters):
                self.day += self.chance.randint(1, max(1, 2 * DAYS // self.chapters - 1))
                # Nothing can follow on an install that never was.
                chapter = self.site if number == 1 else self.chance.choices(*zip(*self._possible()))[0]
                chapter()
                self._his_are_his()
            self._tell("uninstall")
            self._play("gpuops.nvidia.uninstall", OLD)
            left = self._apart()
        except (AssertionError, LabError) as error:
            said = self.fleet.say(OURS, "tail", "-n", "300", "/var/log/apt/term.log")
            raise AssertionError("%s\n%s\n%s" % (error, "\n".join(self.told), said)) from error
        assert not left, "not what the admin made, as it is and as he made it:\n%s\n%s" % (
            "\n".join(self.told), "\n".join(shown(left)))
        return self.told

    def _possible(self) -> List[Tuple[Callable[[], None], int]]:
        """What may happen next, and how often it does."""
        admin = self.admin
        possible: List[Tuple[Callable[[], None], int]] = [
            (self.install, 3), (self.edit, 2), (self.write, 2), (self.local_package, 1), (self.reboot, 1),
            (self.site, 3), (self.refused, 1), (self.apt_fails, 2), (self.no_network, 1), (self.cut, 2)]
        possible += [(self.remove, 2)] if admin.installed else []
        possible += [(self.delete, 1)] if admin.files else []
        possible += [(self.release, 1)] if admin.held else []
        possible += [(self.hold, 1)] if len(admin.held) < len(HELD) else []
        possible += [(self.kernel_goes, 2) if admin.kernel else (self.kernel_comes, 2)]
        possible += [(self.uninstall, 1)] if self.version else []
        return possible

    # What the admin does, on both hosts

    def install(self) -> None:
        name = self.chance.choice([each for each in TOOLS if each not in self.admin.installed] or list(TOOLS))
        self._both("installs %s" % name, install(name))
        self.admin.installed = sorted({*self.admin.installed, name})

    def remove(self) -> None:
        name = self.chance.choice(self.admin.installed)
        self._both("removes %s" % name, "apt-get -qq -y purge --allow-change-held-packages %s >/dev/null" % name)
        self.admin.installed.remove(name)

    def local_package(self) -> None:
        name = "site-tool-%d" % self.day
        self._both("installs %s, a package of their own" % name, (
            "d=$(mktemp -d); mkdir -p $d/p/DEBIAN $d/p/opt/{0}; echo {0} > $d/p/opt/{0}/file\n"
            "printf 'Package: {0}\\nVersion: 1\\nArchitecture: all\\nMaintainer: a <a@b.c>\\nDescription: x\\n' "
            "> $d/p/DEBIAN/control\n"
            "dpkg-deb --root-owner-group --build $d/p $d/{0}.deb >/dev/null; dpkg -i $d/{0}.deb >/dev/null; "
            "rm -r $d").format(name))
        self.admin.installed = sorted([*self.admin.installed, name])

    def hold(self) -> None:
        name = self.chance.choice([each for each in HELD if each not in self.admin.held])
        self._both("holds %s" % name, "apt-mark hold %s >/dev/null" % name)
        self.admin.held.append(name)

    def release(self) -> None:
        name = self.chance.choice(self.admin.held)
        self._both("releases %s" % name, "apt-mark unhold %s >/dev/null" % name)
        self.admin.held.remove(name)

    def edit(self) -> None:
        self._both("writes a line into containerd's configuration",
                   "sed -i '1i # day %d' /etc/containerd/config.toml" % self.day)

    def write(self) -> None:
        name = self.chance.choice(("/etc/modprobe.d/%d.conf", "/etc/sysctl.d/%d.conf", "/etc/cdi/%d.txt",
                                   "/etc/udev/rules.d/99-%d.rules", "/etc/apt/preferences.d/%d")) % self.day
        self._both("writes %s" % name, "mkdir -p $(dirname {0}); echo '# day {1}' > {0}".format(name, self.day))
        self.admin.files.append(name)

    def delete(self) -> None:
        name = self.chance.choice(self.admin.files)
        self._both("deletes %s" % name, "rm %s" % name)
        self.admin.files.remove(name)

    def kernel_comes(self) -> None:
        self._both("installs the kernel %s" % KERNEL, "sed 's/bookworm/bookworm-update/' "
                   "/etc/apt/sources.list.d/debian.sources > %s; apt-get -qq update; %s"
                   % (UPDATE_SUITE, install("linux-image-%s linux-headers-%s" % (KERNEL, KERNEL))))
        self.admin.kernel = True

    def kernel_goes(self) -> None:
        self._both("removes the kernel %s and what nobody needs" % KERNEL,
                   "apt-get -qq -y purge --auto-remove linux-image-{0} linux-headers-{0} >/dev/null; "
                   "rm {1}; apt-get -qq update".format(KERNEL, UPDATE_SUITE))
        self.admin.kernel = False

    def reboot(self) -> None:
        self._tell("reboots")
        for host in (OURS, TWIN):
            self.fleet.lab.reboot(host)

    # What we do, on one of them

    def site(self) -> None:
        self.version = self.chance.choice((OLD, NEW))
        self._tell("site with driver %s" % self.version)
        self._play("gpuops.nvidia.site", self.version)

    def uninstall(self) -> None:
        self._tell("uninstall")
        self._play("gpuops.nvidia.uninstall", OLD)
        self.version = None

    def refused(self) -> None:
        self._tell("site with a driver that there is not")
        assert self._run("gpuops.nvidia.site", "580.1.1") != 0, "site installed a driver that there is not"

    def apt_fails(self) -> None:
        """On the way to the driver that is not there, or apt would have nothing to do."""
        there = self.fleet.say(OURS, "dpkg-query", "-W", "-f", "${Version}", "nvidia-kernel-open-dkms")
        wanted = NEW if there.startswith(OLD) else OLD
        self._tell("site with driver %s, and apt fails in its transaction" % wanted)
        self._ours("""echo 'DPkg::Pre-Install-Pkgs {"exit 1";};' > %s""" % APT_FAILS)
        try:
            assert self._run("gpuops.nvidia.site", wanted) != 0, "apt failed, and site did not"
        finally:
            self._ours("rm %s" % APT_FAILS)
        self.version = self.version or wanted

    def no_network(self) -> None:
        self._tell("site while the package source is away")
        self._ours("sed -i.away s/packages.gpulab/packages.away/ /etc/hosts")
        try:
            self._run("gpuops.nvidia.site", self.version or OLD)
        finally:
            self._ours("mv /etc/hosts.away /etc/hosts")

    def cut(self) -> None:
        self.version = self.chance.choice((OLD, NEW))
        seconds, power = self.chance.uniform(1, 40), self.chance.random() < 0.5
        self._tell("site with driver %s, cut after %.0f s: %s" % (
            self.version, seconds, "power of the host" if power else "controller"))
        running = self.fleet.start("gpuops.nvidia.site", "--limit", OURS, gpu_driver_version=self.version)
        try:
            running.process.wait(seconds)
        except subprocess.TimeoutExpired:
            if power:
                self.fleet.lab.kill(OURS)
        host_cuts.kill_controller(running, self.fleet.scratch)
        self.fleet.lab.start(OURS)
        # Packages are half unpacked perhaps, and then apt serves nobody, the admin neither
        self.chance.choice((self.site, self.site, self.uninstall))()

    # How

    def _tell(self, text: str) -> None:
        self.told.append("day %d: %s" % (self.day, text))

    def _both(self, text: str, script: str) -> None:
        self._tell("the admin " + text)
        on_both(script, self.fleet)

    def _ours(self, script: str) -> None:
        self.fleet.lab.host(OURS).ssh(["sh", "-es"], feed=script + "\n")

    def _run(self, playbook: str, version: str) -> int:
        return self.fleet.run(playbook, "--limit", OURS, gpu_driver_version=version).code

    def _play(self, playbook: str, version: str) -> None:
        self.fleet.play(playbook, "--limit", OURS, gpu_driver_version=version)

    def _his_are_his(self) -> None:
        """At any time: whoever asks for what autoremove or we take away as nobody's has lost it."""
        asked, here = (set(self.fleet.say(host, "apt-mark", "showmanual").split()) for host in (TWIN, OURS))
        lost = sorted(asked.difference(here))
        assert not lost, "the admin asked for %s, which is gone or counts as a dependency:\n%s" % (
            ", ".join(lost), self.fleet.say(OURS, "tail", "-n", "60", "/var/log/apt/history.log"))

    def _apart(self) -> Dict[str, Any]:
        """{aspect: (of the twin, of ours)} where the hosts are not the same.

        What nobody has asked for and nothing needs is swept from both, once it is seen that none of it came by us. His
        own autoremove keeps such a package where another one suggests it, and ours goes with us; what came by him and
        was needed by us when he swept is left to his next autoremove.
        """
        left = set(self.fleet.packages(OURS)).difference(self.fleet.packages(TWIN))
        # On the twin all that ever came has come by him: what was ours is his once a package of his needs it as we go
        (_none, by_him), (by_us, by_him_too) = (
            installed_by(self.fleet.say(host, "cat", "/var/log/apt/history.log")) for host in (TWIN, OURS))
        ours_left = sorted((left & by_us) - by_him_too - by_him)
        assert not ours_left, "left by us: %s" % ", ".join(ours_left)
        on_both(SWEEP, self.fleet)
        twin, ours = theirs(self.fleet, TWIN), theirs(self.fleet, OURS)
        apart = {aspect: different(twin[aspect], ours[aspect]) for aspect in twin}
        return {aspect: each for aspect, each in apart.items() if each}


def installed_by(history: str) -> Tuple[Set[str], Set[str]]:
    """Packages that transactions of ours have installed, and those that others' have."""
    ours: Set[str] = set()
    others: Set[str] = set()
    for entry in history.split("\n\n"):
        installed = re.search(r"(?m)^Install: (.*)$", entry)
        names = re.findall(r"(\S+?):(\S+) \(", installed.group(1)) if installed else []
        # As our packages are listed: with the architecture where it is one of several
        found = {name for name, _arch in names} | {":".join(each) for each in names}
        (ours if "DPkg::Lock::Timeout" in entry else others).update(found)
    return ours, others


def shown(left: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """The packages first, as files follow from them; of each aspect as many as can be read."""
    for aspect in sorted(left, key=lambda each: each == "tree"):
        yield "%s: %d" % (aspect, len(left[aspect]))
        for name, (theirs_, ours) in list(left[aspect].items())[:MOST_SHOWN]:
            yield "  %s: %s, his %s" % (name, ours, theirs_)


def install(names: str) -> str:
    return "DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install %s >/dev/null" % names


def on_both(script: str, fleet: Fleet) -> None:
    """What an admin has done is on the disk before anything else happens: a cut comes to one of the hosts alone."""
    for host in (OURS, TWIN):
        fleet.lab.host(host).ssh(["sh", "-es"], feed=script + "\nsync\n")


def theirs(fleet: Fleet, host: str) -> Dict[str, Mapping[str, str]]:
    """Everything on a host that is not of this very host alone or the distribution's programs' own."""
    def marked(word: str) -> Dict[str, str]:
        return dict.fromkeys(fleet.say(host, "apt-mark", word).split(), "yes")

    tree = {path: seen for path, seen in fleet.fingerprint(host).items()
            if not OTHERS_OWN.fullmatch(path) and not OF_A_HOST.fullmatch(path)}
    return {"tree": tree, "packages": fleet.packages(host), "held": marked("showhold"),
            "asked for": marked("showmanual")}
