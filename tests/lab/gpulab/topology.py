# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a laboratory consists of, as a user writes it in a small YAML file."""
from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Dict, Mapping, Optional, Tuple

TOPOLOGIES = Path(__file__).resolve().parents[1] / "topologies"
IMAGES = ("bookworm",)
# Roots of hosts outside of a cluster: no store of images is made for them
APART = ("trixie",)
# Roots that are a layer over another
LAYERED = {"el9": "bookworm", "sles15": "bookworm"}
RUNTIMES = ("containerd", "cri-o")
CONTAINERDS = ("debian", "1.7", "2.2", "2.3")
MAX_HOSTS = 8

_HOST_NAME = re.compile(r"^[a-z]([a-z0-9-]{0,30}[a-z0-9])?$")


class TopologyError(ValueError):
    """A topology that cannot be built; the message names the file, the key and what is accepted."""


@dataclass(frozen=True)
class HostSpec:
    name: str
    image: str = "bookworm"
    board: Optional[str] = None
    gpus: int = 0
    join: bool = True
    containerd: str = "debian"
    runtime: str = "containerd"
    disk: bool = False


@dataclass(frozen=True)
class Topology:
    name: str
    hosts: Tuple[HostSpec, ...]
    control_plane: bool = True

    def host(self, name: str) -> HostSpec:
        for host in self.hosts:
            if host.name == name:
                return host
        raise TopologyError("there is no host %s in %s; there are: %s"
                            % (name, self.name, ", ".join(each.name for each in self.hosts)))

    def as_json(self) -> Dict[str, Any]:
        return asdict(self)


def load(name_or_path: str) -> Topology:
    """Read a topology by the name of a file in ``topologies/`` or by a path."""
    import yaml

    path = Path(name_or_path)
    if not path.suffix and not path.is_file():
        path = TOPOLOGIES / ("%s.yml" % name_or_path)
    if not path.is_file():
        raise TopologyError("no topology %s; there are: %s (or give the path of a file)" % (
            name_or_path, ", ".join(sorted(each.stem for each in TOPOLOGIES.glob("*.yml")))))
    try:
        document = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise TopologyError("%s is not YAML: %s" % (path, error)) from error
    return parse(document, str(path), default_name=path.stem)


def parse(document: Any, where: str, default_name: str = "topology") -> Topology:
    """Turn a topology's document, from YAML or from a running lab's record, into a checked `Topology`."""
    table = _table(document, where, ("name", "hosts", "control_plane"))
    control_plane = _typed(table, "control_plane", bool, True, where)
    entries = table.get("hosts")
    if not isinstance(entries, (list, tuple)) or not (entries or control_plane):
        raise TopologyError("%s: hosts must be a list, of at least one host where there is no control plane" % where)
    if len(entries) > MAX_HOSTS:
        raise TopologyError("%s: %d hosts; a laboratory has room for %d" % (where, len(entries), MAX_HOSTS))
    hosts = tuple(_host(entry, "%s: hosts[%d]" % (where, number), control_plane)
                  for number, entry in enumerate(entries))
    names = [host.name for host in hosts]
    for name in names:
        if names.count(name) > 1:
            raise TopologyError("%s: two hosts are called %s" % (where, name))
    return Topology(_typed(table, "name", str, default_name, where), hosts, control_plane)


def _host(entry: Any, where: str, control_plane: bool) -> HostSpec:
    table = _table(entry, where, ("name", "image", "board", "gpus", "join", "containerd", "runtime", "disk"))
    name = _typed(table, "name", str, "", where)
    if not _HOST_NAME.match(name):
        raise TopologyError("%s: name %r is not a host name (lower case letters, digits, hyphens)" % (where, name))
    board = table.get("board")
    if board is not None and not isinstance(board, str):
        raise TopologyError("%s: board must be the name of a board profile, found %r" % (where, board))
    gpus = _typed(table, "gpus", int, 1 if board else 0, where)
    if gpus < 0 or (gpus and not board):
        raise TopologyError("%s: gpus is %d with board %s; give both, or neither for a host without GPUs"
                            % (where, gpus, board))
    join = _typed(table, "join", bool, control_plane, where)
    if join and not control_plane:
        raise TopologyError("%s: join is true, but control_plane is false: there is no cluster to join" % where)
    image = _choice(table, "image", (*IMAGES, *APART, *LAYERED), where)
    runtime = _choice(table, "runtime", RUNTIMES, where)
    containerd = _choice(table, "containerd", CONTAINERDS, where)
    if runtime != "containerd" and containerd != CONTAINERDS[0]:
        raise TopologyError("%s: containerd is %r with runtime %s; give the version of a runtime that the host runs"
                            % (where, containerd, runtime))
    if image in APART and (join or runtime != "containerd"):
        raise TopologyError("%s: a host of %s joins no cluster and has Debian's containerd; give join: false, and no "
                            "runtime" % (where, image))
    return HostSpec(name, image, board, gpus, join, containerd, runtime,
                    _typed(table, "disk", bool, False, where))


def _table(document: Any, where: str, known: Tuple[str, ...]) -> Mapping[str, Any]:
    if not isinstance(document, dict):
        raise TopologyError("%s must be a mapping, found %s" % (where, type(document).__name__))
    for key in document:
        if key not in known:
            raise TopologyError("%s: unknown key %r; known: %s" % (where, key, ", ".join(known)))
    return document


def _typed(table: Mapping[str, Any], key: str, kind: type, default: Any, where: str) -> Any:
    value = table.get(key, default)
    if type(value) is not kind:
        raise TopologyError("%s: %s must be %s, found %r" % (where, key, kind.__name__, value))
    return value


def _choice(table: Mapping[str, Any], key: str, choices: Tuple[str, ...], where: str) -> str:
    value = str(table.get(key, choices[0]))
    if value not in choices:
        raise TopologyError("%s: %s is %r; there are: %s" % (where, key, value, ", ".join(choices)))
    return value
