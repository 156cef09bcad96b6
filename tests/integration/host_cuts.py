# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Cuts a host off in the middle of an install, an upgrade or an uninstall, and sees what the next run makes of it.

A cut is drawn from a seed: what dies (the host's power, the controller, or our module and the package manager), at
which event of the journal, and how far into the time that passes until the next. The host has a disk of its own, so
that a power cut loses what nobody has synced. The way back begins at once: an orphan of a killed controller may still
be at work then.
"""
from __future__ import annotations

import functools
import os
import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Mapping, Tuple

from laboratory import JOURNAL, OTHERS_OWN, Fleet, Running, different, host_state

from gpulab.processes import children
from gpulab.topology import Topology, parse

OLD, NEW = "580.178.04", "595.91.07"
# What is done, in the order of a host's life: the playbook and the driver that it is told.
PHASES: Dict[str, Tuple[str, str]] = {
    "install": ("gpuops.nvidia.site", OLD),
    "upgrade": ("gpuops.nvidia.site", NEW),
    "uninstall": ("gpuops.nvidia.uninstall", NEW),
}
POWER, CONTROLLER, PROCESSES = "power of the host", "controller", "module and package manager"
KINDS = (POWER, POWER, CONTROLLER, PROCESSES)

# What an admin has on the host that is near to what we touch: an edited file, packages that we need too, a hold, a
# unit that must never run, a CDI file and settings of modules.
ADMINS_OWN = """
set -e
apt-get -qq update
DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install make mokutil >/dev/null
apt-mark hold containerd >/dev/null
sed -i '1i # mine, do not touch' /etc/containerd/config.toml
printf 'options snd_hda_intel power_save=1\\n' > /etc/modprobe.d/mine.conf
chmod 640 /etc/modprobe.d/mine.conf
ln -s /dev/null /etc/systemd/system/mine.service
mkdir -p /etc/cdi
printf 'cdiVersion: 0.5.0\\nkind: vendor.com/net\\ndevices: []\\n' > /etc/cdi/mine.yaml
sync
"""

_KILL = """
import os, signal
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        with open("/proc/%s/cmdline" % pid) as handle:
            words = handle.read().split("\\0")[:-1]
    except OSError:
        continue
    module = words and "python3" in words[0] and (len(words) == 1 or "AnsiballZ" in words[1])
    if module or words and os.path.basename(words[0]) in ("apt-get", "dpkg", "dkms"):
        try:
            os.kill(int(pid), signal.SIGKILL)
            print(pid)
        except ProcessLookupError:
            pass
"""


def topology(host: str) -> Topology:
    return parse({"name": "cuts", "control_plane": False, "hosts": [
        {"name": host, "board": "h100-sxm-hgx", "gpus": 8, "disk": True}]}, __file__)


@dataclass(frozen=True)
class Undisturbed:
    """How a phase ends when nobody cuts it, and when its events came: seconds since its start, the last its end."""

    end: Mapping[str, Any]
    pace: Tuple[float, ...]


@dataclass(frozen=True)
class Cut:
    kind: str
    events: int
    seconds: float

    def __str__(self) -> str:
        return "%s cut %.2f s after event %d" % (self.kind, self.seconds, self.events)


def draw(seed: int, phase: str, pace: Tuple[float, ...]) -> Cut:
    """The cut of a seed in a phase: every event is as likely as every other, however long what follows it takes."""
    chance = random.Random("%d %s" % (seed, phase))
    kind = chance.choice(KINDS)
    events = chance.randrange(len(pace))
    return Cut(kind, events, chance.random() * (pace[events] - (pace[events - 1] if events else 0.0)))


class Bed:
    """A host on which phases are done undisturbed once and then cut."""

    def __init__(self, fleet: Fleet, host: str) -> None:
        self.fleet = fleet
        self.host = host
        self.bare: Mapping[str, Any] = {}
        self.known: Dict[str, Undisturbed] = {}

    def deliver(self) -> None:
        """A host that an admin has made theirs, bare of ours."""
        self.fleet.lab.host(self.host).ssh(["sh", "-s"], feed=ADMINS_OWN)
        if not self.bare:
            self.bare = self._ours_and_theirs()

    def undisturbed(self, phase: str) -> None:
        journal = self._journal()
        before = lines(journal)
        pace: List[float] = []
        started = time.monotonic()
        running = self._start(phase)
        while running.process.poll() is None:
            pace += [time.monotonic() - started] * (lines(journal) - before - len(pace))
            time.sleep(0.002)
        played = running.wait()
        assert played.code == 0, played.failures()
        self.known[phase] = Undisturbed(self._end(phase), (*pace, time.monotonic() - started))

    def cut(self, phase: str, seed: int) -> str:
        """Cut the phase and do it again; what was cut, in words. Raises AssertionError where the end is another."""
        cut = draw(seed, phase, self.known[phase].pace)
        told = "%s: %s" % (phase, cut) if self._do(phase, cut) else "%s: it ended before the %s" % (phase, cut)
        playbook, version = PHASES[phase]
        again = self.fleet.run(playbook, gpu_driver_version=version)
        assert again.code == 0, "%s; the next run: %s" % (told, again.failures())
        wrong = apart(self.known[phase].end, self._end(phase))
        assert not wrong, "%s; then not as undisturbed: %s" % (told, wrong)
        if phase != "uninstall":
            assert self.fleet.play(playbook, gpu_driver_version=version).changes() == [], told
        return told

    def renew(self, phase: str) -> None:
        """The host as it is at the end of the phase when nobody cuts, whatever it was."""
        self.fleet.lab.reset(self.host)
        self.deliver()
        if phase != "uninstall":
            for playbook, version in list(PHASES.values())[:list(PHASES).index(phase) + 1]:
                self.fleet.play(playbook, gpu_driver_version=version)

    def _start(self, phase: str) -> Running:
        playbook, version = PHASES[phase]
        return self.fleet.start(playbook, gpu_driver_version=version)

    def _do(self, phase: str, cut: Cut) -> bool:
        journal = self._journal()
        before = lines(journal)
        running = self._start(phase)
        while running.process.poll() is None and lines(journal) - before < cut.events:
            time.sleep(0.002)
        time.sleep(cut.seconds)
        in_time = running.process.poll() is None
        if cut.kind == POWER:
            self.fleet.lab.kill(self.host)
        if cut.kind == PROCESSES:
            in_time &= bool(self.fleet.lab.host(self.host).ssh(["python3", "-"], feed=_KILL).stdout)
            running.process.wait()
        # Whoever sits before a controller that waits for a dead host ends it too.
        kill_controller(running, self.fleet.scratch)
        if cut.kind == POWER:
            self.fleet.lab.start(self.host)
        return in_time

    def _journal(self) -> Path:
        """The journal as it is seen from outside of the host, until its next boot."""
        return Path("/proc/%s/root%s" % (self.fleet.lab.host(self.host).init_pid, JOURNAL))

    def _end(self, phase: str) -> Dict[str, Any]:
        return self._ours_and_theirs() if phase == "uninstall" else host_state(self.fleet, self.host)

    def _ours_and_theirs(self) -> Dict[str, Any]:
        return {
            "tree": {path: seen for path, seen in self.fleet.fingerprint(self.host).items()
                     if not OTHERS_OWN.fullmatch(path)},
            "packages": self.fleet.packages(self.host),
            "held": self.fleet.say(self.host, "apt-mark", "showhold"),
            "asked for": self.fleet.say(self.host, "apt-mark", "showmanual"),
            "modules": self.fleet.say(self.host, "sh", "-c", "lsmod | grep nvidia"),
            "nodes": self.fleet.say(self.host, "sh", "-c", "ls -d /dev/nvidia* /var/run/cdi/nvidia*"),
        }

    def assert_bare(self) -> None:
        """The host is what it was before the first run."""
        assert apart(self.bare, self._ours_and_theirs()) == {}


def apart(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> Dict[str, Any]:
    """{aspect: what is not the same}."""
    told = {aspect: different(each, found[aspect]) if isinstance(each, dict) else
            () if each == found[aspect] else (each, found[aspect]) for aspect, each in wanted.items()}
    return {aspect: each for aspect, each in told.items() if each}


def lines(path: Path) -> int:
    try:
        seen = path.stat()
        return _lines(path, seen.st_ino, seen.st_size)
    except OSError:
        return 0


@functools.lru_cache(maxsize=1)
def _lines(path: Path, inode: int, size: int) -> int:
    """Read once for each size: who waits for an event asks hundreds of times a second."""
    return path.read_bytes().count(b"\n")


def kill_controller(running: Running, scratch: Path) -> None:
    """The controller dies at once: ansible-playbook, its forks and the ssh connections that outlive them."""
    family = [running.process.pid] if running.process.poll() is None else []
    for pid in family:
        family += children(pid)
    for pid in family:
        _kill(pid)
    running.process.wait()
    sockets = str(scratch / "ansible" / "cp")
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            of_ours = sockets.encode() in entry.read_bytes()
        except OSError:
            continue
        if of_ours:
            _kill(int(entry.parent.name))


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
