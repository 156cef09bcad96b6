# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The network of a lab: one bridge, one /24 of hosts, a /24 of pods for each host, all derived from one number."""
from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Iterable, List, Set

from .processes import LabError, run

PREFIX = 24
LABS = 40
FIRST_HOST = 11
PACKAGES_PORT = 8480
API_PORT = 6443
SERVICE_RANGE = "10.96.0.0/16"
API_SERVICE_ADDRESS = "10.96.0.1"


@dataclass(frozen=True)
class Network:
    bridge: str
    number: int

    @property
    def controller(self) -> str:
        """The bridge's own address: packages and the API server are there."""
        return "10.210.%d.1" % self.number

    @property
    def loopback(self) -> str:
        """A loopback address of this lab alone, so that etcd and the controllers keep their usual ports."""
        return "127.210.%d.1" % self.number

    @property
    def packages_url(self) -> str:
        return "http://%s:%d" % (self.controller, PACKAGES_PORT)

    @property
    def api_url(self) -> str:
        return "https://%s:%d" % (self.controller, API_PORT)

    def host(self, position: int) -> str:
        return "10.210.%d.%d" % (self.number, FIRST_HOST + position)

    def pods(self, position: int) -> str:
        return "10.%d.%d.0/24" % (211 + self.number, position)

    @property
    def all_pods(self) -> str:
        return "10.%d.0.0/16" % (211 + self.number)


def choose(lab: str, taken: Iterable[int]) -> Network:
    """A network whose addresses nobody on this machine uses yet."""
    used = set(taken) | _numbers_in_use()
    for number in range(LABS):
        if number not in used:
            return Network(bridge_name(lab), number)
    raise LabError("all %d laboratory networks (10.210.0.0/24 and following) are in use; end a lab with `down`" % LABS)


def bridge_name(lab: str) -> str:
    """Interface names have at most 15 characters."""
    name = "gpulab-%s" % lab
    return name if len(name) <= 15 else "gpulab-%s" % hashlib.sha256(lab.encode()).hexdigest()[:8]


def bring_up(network: Network, hosts: int) -> None:
    existing = {link["ifname"] for link in json.loads(run(["ip", "-json", "link", "show"]))}
    if network.bridge not in existing:
        run(["ip", "link", "add", network.bridge, "type", "bridge", "forward_delay", "0"])
    run(["ip", "address", "replace", "%s/%d" % (network.controller, PREFIX), "dev", network.bridge])
    run(["ip", "link", "set", network.bridge, "up"])
    for position in range(hosts):
        run(["ip", "route", "replace", network.pods(position), "via", network.host(position), "dev", network.bridge])


def take_down(network: Network) -> None:
    # The kernel takes a dead host's link away some time later; the next host of that name needs it gone now.
    for link in json.loads(run(["ip", "-json", "link", "show", "master", network.bridge], check=False) or "[]"):
        if link:
            run(["ip", "link", "delete", link["ifname"]], check=False)
    run(["ip", "link", "delete", network.bridge], check=False)


def _numbers_in_use() -> Set[int]:
    numbers: List[int] = []
    for link in json.loads(run(["ip", "-json", "-4", "address", "show"])):
        for address in link.get("addr_info", ()):
            words = address["local"].split(".")
            if words[:2] == ["10", "210"]:
                numbers.append(int(words[2]))
            elif words[0] == "10" and 211 <= int(words[1]) < 211 + LABS:
                numbers.append(int(words[1]) - 211)
    return set(numbers)
