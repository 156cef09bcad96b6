# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What runs: a table of a lab's processes, hosts and nodes."""
from __future__ import annotations

from pathlib import Path
from typing import Dict, List

from . import cgroups
from .hosts import Host
from .lab import Lab
from .paths import running_labs
from .processes import Daemon


def report(name: str, every: bool) -> int:
    names = running_labs() if every else [name]
    if every and not names:
        print("no lab is up")
    return max([_report_one(Lab(each)) for each in names], default=0)


def _report_one(lab: Lab) -> int:
    """Print the lab; 0 when everything of it runs, else 1."""
    topology, network = lab.topology, lab.network
    print("lab %s: topology %s, bridge %s %s, packages at %s" % (
        lab.name, topology.name, network.bridge, network.controller, network.packages_url))
    daemons: List[Daemon] = [lab.repositories.daemon]
    plane = lab.control_plane
    if plane:
        daemons += plane.daemons.values()
    for daemon in daemons:
        print("  %-24s %s" % (daemon.name, _life(daemon)))
    ready = plane.nodes_ready() if plane else ()
    for host in lab.hosts.values():
        print("  %-24s %s" % ("host %s" % host.name, _describe(host, host.name in ready)))
    print("  inventory: %s" % lab.inventory)
    if plane:
        print("  kubeconfig: %s" % lab.kubeconfig)
    stopped = [daemon.name for daemon in daemons if daemon.pid is None]
    stopped += [host.name for host in lab.hosts.values() if host.supervisor.pid is None]
    if stopped:
        print("  not running: %s; repair with: lab --name %s up %s" % (", ".join(stopped), lab.name, topology.name))
    return 1 if stopped else 0


def _life(daemon: Daemon) -> str:
    pid = daemon.pid
    return "pid %d, %d MB" % (pid, _memory_mb([pid])) if pid else "not running, see %s" % daemon.log_file


def _describe(host: Host, node_ready: bool) -> str:
    board = "%d x %s" % (host.spec.gpus, host.spec.board) if host.spec.board else "no GPU"
    if host.supervisor.pid is None:
        return "%s; %s" % ("runs without supervisor" if cgroups.members(host.cgroup) else "off", board)
    node = "" if not host.spec.join else ", node Ready" if node_ready else ", node not Ready"
    return "%s, %s; %s%s; %d MB" % (host.address, "answers" if host.answers() else "boots", board, node,
                                    _memory_mb(cgroups.members(host.cgroup)))


def _memory_mb(pids: List[int]) -> int:
    """Resident memory without what is shared with other processes."""
    total = 0
    for pid in pids:
        try:
            fields: Dict[str, str] = dict(line.split(":", 1) for line in
                                          Path("/proc/%d/status" % pid).read_text().splitlines() if ":" in line)
            total += int(fields.get("RssAnon", "0 kB").split()[0])
        except (OSError, ValueError):
            continue
    return total >> 10
