# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Topologies: what users write is checked before anything is started."""
from __future__ import annotations

import json
from typing import Any, Dict

import pytest

from gpulab import silicon
from gpulab.lab import REPOSITORIES, parts_of, repositories_of
from gpulab.parts.registry import workshop
from gpulab.topology import TOPOLOGIES, HostSpec, TopologyError, load, parse


@pytest.mark.parametrize("name", sorted(path.stem for path in TOPOLOGIES.glob("*.yml")))
def test_shipped_topologies_name_boards_that_exist(name: str) -> None:
    topology = load(name)
    assert topology.name == name
    for host in topology.hosts:
        assert host.board is None or 0 < host.gpus <= len(silicon.profile_table(host.board)["slots"])


@pytest.mark.parametrize("name", sorted(path.stem for path in TOPOLOGIES.glob("*.yml")))
def test_shipped_topologies_need_parts_that_exist(name: str) -> None:
    shop = workshop()
    assert set(parts_of(load(name))) <= set(shop.parts)
    assert set(REPOSITORIES.values()) <= set(shop.order(parts_of(load(name))))


def test_defaults_are_a_joined_host_of_the_first_image() -> None:
    topology = parse({"hosts": [{"name": "a", "board": "t4"}]}, "here", default_name="mine")
    assert topology.name == "mine"
    assert topology.hosts == (HostSpec("a", "bookworm", "t4", 1, True, "debian"),)


def test_hosts_do_not_join_where_there_is_no_cluster() -> None:
    topology = parse({"control_plane": False, "hosts": [{"name": "a"}]}, "here")
    assert not topology.hosts[0].join
    assert "kubernetes" not in parts_of(topology)


def test_a_host_of_debian_13_has_a_mirror_of_its_own() -> None:
    topology = parse({"control_plane": False, "hosts": [{"name": "a", "image": "trixie"}]}, "here")
    assert repositories_of(topology) == {**REPOSITORIES, "debian-trixie": "apt-debian-trixie"}
    assert {"root-trixie", "apt-debian-trixie"} <= set(parts_of(topology)) <= set(workshop().parts)
    assert not {"root-trixie", "apt-debian-trixie"} & set(parts_of(load("single")))


def test_a_running_lab_reads_back_what_it_recorded() -> None:
    topology = load("runtimes")
    assert parse(json.loads(json.dumps(topology.as_json())), "record") == topology


@pytest.mark.parametrize(("document", "message"), [
    ([], "must be a mapping"),
    ({"hosts": [], "control_plane": False}, "at least one host"),
    ({"hosts": [{"name": "a%d" % number} for number in range(9)]}, "has room for 8"),
    ({"hosts": [{"name": "A_b"}]}, "is not a host name"),
    ({"hosts": [{"name": "a"}, {"name": "a"}]}, "two hosts are called a"),
    ({"hosts": [{"name": "a", "gpu": 8}]}, "unknown key 'gpu'; known: name, image"),
    ({"hosts": [{"name": "a", "gpus": 8}]}, "gpus is 8 with board None"),
    ({"hosts": [{"name": "a", "board": "t4", "gpus": "8"}]}, "gpus must be int, found '8'"),
    ({"hosts": [{"name": "a", "image": "sarge"}]}, "image is 'sarge'; there are: bookworm"),
    ({"hosts": [{"name": "a", "containerd": 1.5}]}, "containerd is '1.5'; there are: debian, 1.7"),
    ({"hosts": [{"name": "a", "runtime": "docker"}]}, "runtime is 'docker'; there are: containerd, cri-o"),
    ({"hosts": [{"name": "a", "runtime": "cri-o", "containerd": "2.2"}]}, "containerd is '2.2' with runtime cri-o"),
    ({"control_plane": False, "hosts": [{"name": "a", "join": True}]}, "there is no cluster to join"),
    ({"hosts": [{"name": "a", "image": "trixie"}]}, "a host of trixie joins no cluster"),
    ({"control_plane": False, "hosts": [{"name": "a", "image": "trixie", "runtime": "cri-o"}]}, "Debian's containerd"),
    ({"hosts": [{"name": "a", "disk": "small"}]}, "disk must be bool"),
    ({"control_plane": "yes", "hosts": [{"name": "a"}]}, "control_plane must be bool"),
])
def test_mistakes_are_named(document: Any, message: str) -> None:
    with pytest.raises(TopologyError) as caught:
        parse(document, "file.yml")
    assert message in str(caught.value)
    assert str(caught.value).startswith("file.yml")


def test_an_unknown_topology_lists_the_known_ones() -> None:
    with pytest.raises(TopologyError, match="bare, cluster, containerds, cri-o, demo"):
        load("no-such")


def test_an_unknown_host_lists_the_known_ones() -> None:
    with pytest.raises(TopologyError, match="there are: a100, h100"):
        load("demo").host("b200")


def test_the_version_of_containerd_may_be_written_as_a_number() -> None:
    entry: Dict[str, Any] = {"name": "a", "containerd": 2.2}
    assert parse({"hosts": [entry]}, "here").hosts[0].containerd == "2.2"


def test_a_host_with_cri_o_needs_its_layer_and_its_store() -> None:
    names = parts_of(load("cri-o"))
    assert {"cri-o-layer", "store-bookworm-cri-o", "kubernetes", "silicon"} <= set(names)
    assert not [name for name in names if name.startswith(("containerd", "store-bookworm-debian"))]
