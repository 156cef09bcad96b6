# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is written into a host before its first boot, and how it is booted."""
from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path
from typing import Tuple

import pytest

from gpulab import hosts
from gpulab.hosts import Host, HostParts, Membership, copy_store, remove_tree
from gpulab.lab import Lab, inventory_text
from gpulab.network import LABS, Network, bridge_name
from gpulab.supervisor import Machine, nspawn_command
from gpulab.topology import HostSpec

SPECS = (HostSpec("one", containerd="debian"), HostSpec("two", containerd="2.2"))
NETWORK = Network("gpulab-test", 7)


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tuple[Host, Host]:
    """Two hosts of one cluster, written but not booted."""
    monkeypatch.setenv("GPUOPS_CACHE", str(tmp_path / "cache"))
    for name in ("root/etc", "layer", "kubernetes/bin", "containerd/bin", "store"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "containerd/bin/containerd").write_text("program")
    for name in ("passwd", "group", "shadow", "gshadow"):
        (tmp_path / "root/etc" / name).write_text("root\n")
    (tmp_path / "store/blob").write_text("content")
    (tmp_path / "store/meta.db").write_text("database")
    for name in ("ca", "kubeconfig", "certificate", "key", "gpulab.pub"):
        (tmp_path / name).write_text(name)
    membership = Membership(tmp_path / "ca", tmp_path / "kubeconfig", tmp_path / "certificate", tmp_path / "key",
                            "10.210.7.1:6443", "10.96.0.1")
    pair = tuple(Host("test", spec, position, NETWORK, SPECS) for position, spec in enumerate(SPECS))
    for host in pair:
        host.paths.ssh.mkdir(parents=True, exist_ok=True)
        host.paths.ssh_key.with_suffix(".pub").write_text("ssh-ed25519 AAAA lab")
        other = host.spec.containerd != "debian"
        host.prepare(HostParts(tmp_path / "root", tmp_path / "layer", None, tmp_path / "kubernetes",
                               tmp_path / "containerd" if other else None, tmp_path / "store",
                               tmp_path / "gpulab.pub"), membership)
    return pair[0], pair[1]


def upper(host: Host, inside: str) -> Path:
    return host.written / "upper" / inside


def test_a_person_who_is_not_root_may_use_sudo(prepared: Tuple[Host, Host]) -> None:
    host = prepared[0]
    assert upper(host, "etc/passwd").read_text() == "root\nadmin:x:1000:1000::/home/admin:/bin/bash\n"
    assert upper(host, "etc/sudoers.d/admin").read_text() == "admin ALL=(ALL) NOPASSWD: ALL\n"
    assert stat.S_IMODE(upper(host, "etc/sudoers.d/admin").stat().st_mode) == 0o440
    keys = upper(host, "home/admin/.ssh/authorized_keys")
    assert keys.read_text() == "ssh-ed25519 AAAA lab"
    assert stat.S_IMODE(keys.parent.stat().st_mode) == 0o700


def test_containerd_is_configured_by_an_admin_who_knows_no_gpu(prepared: Tuple[Host, Host]) -> None:
    old, new = (upper(host, "etc/containerd/config.toml").read_text() for host in prepared)
    assert "version = 2\n" in old and "version = 3\n" in new
    for text in (old, new):
        assert "SystemdCgroup = false" in text and "registry.k8s.io/pause:3.10" in text
        assert "nvidia" not in text and "$" not in text


def test_an_own_containerd_comes_from_usr_local(prepared: Tuple[Host, Host]) -> None:
    old, new = prepared
    assert not upper(old, "usr/local").exists()
    assert str(upper(new, "usr/local/bin/containerd").readlink()) == "/usr/local/lib/containerd/containerd"
    assert "ExecStart=/usr/local/bin/containerd" in upper(new, "etc/systemd/system/containerd.service").read_text()


def test_a_joined_host_has_only_its_own_credentials(prepared: Tuple[Host, Host]) -> None:
    host = prepared[0]
    assert upper(host, "etc/kubernetes/kubelet.conf").read_text() == "kubeconfig"
    assert upper(host, "etc/kubernetes/pki/ca.crt").read_text() == "ca"
    assert "--hostname-override=one --node-ip=10.210.7.11" in (host.directory / "kubelet/kubeadm-flags.env").read_text()
    assert '"subnet": "10.218.0.0/24"' in upper(host, "etc/cni/net.d/10-gpulab.conflist").read_text()


def test_secrets_are_not_readable_for_everybody(prepared: Tuple[Host, Host]) -> None:
    host = prepared[0]
    for path in (upper(host, "etc/ssh/ssh_host_ed25519_key"), upper(host, "root/.ssh/authorized_keys"),
                 upper(host, "etc/kubernetes/kubelet.conf"), host.directory / "kubelet/pki/kubelet.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE(upper(host, "root").stat().st_mode) == 0o700
    assert stat.S_IMODE(upper(host, "etc").stat().st_mode) == 0o755


def test_hosts_know_each_other_and_the_packages(prepared: Tuple[Host, Host]) -> None:
    names = upper(prepared[0], "etc/hosts").read_text()
    assert "10.210.7.1 packages.gpulab\n" in names
    assert "10.210.7.11 one\n" in names and "10.210.7.12 two\n" in names
    settings = (prepared[0].directory / "conf/host.env").read_text()
    assert 'GPULAB_POD_ROUTES="10.218.1.0/24@10.210.7.12"' in settings


def test_the_only_package_source_is_the_lab(prepared: Tuple[Host, Host]) -> None:
    sources = upper(prepared[0], "etc/apt/sources.list.d/debian.sources").read_text()
    assert "URIs: http://packages.gpulab:8480/debian\n" in sources and "Suites: bookworm\n" in sources


def test_images_are_shared_but_databases_are_not(prepared: Tuple[Host, Host]) -> None:
    blobs = [host.directory / "containerd/blob" for host in prepared]
    databases = [host.directory / "containerd/meta.db" for host in prepared]
    assert blobs[0].stat().st_ino == blobs[1].stat().st_ino
    assert databases[0].stat().st_ino != databases[1].stat().st_ino


def test_a_wiped_host_is_written_again_with_the_same_identity(prepared: Tuple[Host, Host]) -> None:
    host = prepared[0]
    identity, key = host.identity, host.known_host_line()
    parts = HostParts.load(host.parts_file)
    host.wipe()
    assert not host.prepared and not upper(host, "etc").exists()
    host.prepare(parts, None)
    assert host.prepared and host.identity == identity and host.known_host_line() == key
    assert not upper(host, "etc/kubernetes").exists()
    remove_tree(host.written)
    assert not host.prepared, "memory has forgotten it"


def test_a_host_boots_from_layers_in_a_network_of_its_own(prepared: Tuple[Host, Host]) -> None:
    machine = Machine.load(prepared[0].directory)
    assert [Path(layer).name for layer in machine.layers] == ["layer", "root"]
    argv = nspawn_command(machine, Path("/root-of-host"), unified=False)
    assert argv[:1] == ["systemd-nspawn"] and "--network-bridge=gpulab-test" in argv
    assert argv[-2:] == ["systemd.unified_cgroup_hierarchy=0", "SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE=1"]
    assert nspawn_command(machine, Path("/root-of-host"), unified=True)[-1].startswith("--bind-ro=")


def test_without_the_capability_containerd_leaves_oom_scores_alone(
        prepared: Tuple[Host, Host], monkeypatch: pytest.MonkeyPatch) -> None:
    host = prepared[0]
    for able, word in ((True, "false"), (False, "true")):
        monkeypatch.setattr(hosts, "has_capability", lambda number, able=able: able)
        host.prepare(HostParts.load(host.parts_file), None)
        assert "restrict_oom_score_adj = %s\n" % word in upper(host, "etc/containerd/config.toml").read_text()


def test_a_host_with_cri_o_has_its_layer_its_store_and_its_socket(prepared: Tuple[Host, Host], tmp_path: Path) -> None:
    (tmp_path / "store/storage.lock").write_text("lock")
    parts = HostParts.load(prepared[0].parts_file)
    host = Host("test", HostSpec("one", runtime="cri-o"), 0, NETWORK, SPECS)
    host.wipe()
    paths = [tmp_path / name for name in ("ca", "kubeconfig", "certificate", "key")]
    host.prepare(replace(parts, crio=tmp_path / "crio"), Membership(*paths, "10.210.7.1:6443", "10.96.0.1"))
    machine = Machine.load(host.directory)
    assert [Path(layer).name for layer in machine.layers] == ["crio", "layer", "root"]
    assert "%s:/var/lib/containers" % (host.directory / "containers") in machine.binds
    assert not [bind for bind in machine.binds if "containerd" in bind]
    assert "Endpoint: unix:///run/crio/crio.sock\n" in (host.directory / "kubelet/config.yaml").read_text()
    assert not upper(host, "etc/containerd").exists()
    own, shared = host.directory / "containers", tmp_path / "store"
    assert (own / "storage.lock").stat().st_ino != (shared / "storage.lock").stat().st_ino
    assert (own / "blob").stat().st_ino == (shared / "blob").stat().st_ino


def test_the_inventory_is_what_ansible_needs(prepared: Tuple[Host, Host]) -> None:
    lab = Lab("test")
    lab.paths.record.write_text(json.dumps({
        "topology": {"name": "t", "control_plane": False, "hosts": [{"name": "one", "board": "t4"}, {"name": "two"}]},
        "network": {"bridge": NETWORK.bridge, "number": NETWORK.number}}))
    document = json.loads(inventory_text(lab, list(lab.hosts.values())))["all"]
    assert document["hosts"]["two"] == {"ansible_host": "10.210.7.12"}
    assert document["children"] == {"gpu_nodes": {"hosts": {"one": {}}}}
    assert "StrictHostKeyChecking" not in document["vars"]["ansible_ssh_common_args"]


def test_bridge_names_fit_the_kernel() -> None:
    names = {bridge_name(lab) for lab in ("demo", "a-very-long-laboratory-name", "a-very-long-laboratory-name-2")}
    assert len(names) == 3 and all(len(name) <= 15 for name in names)


def test_no_two_labs_share_addresses() -> None:
    networks = [Network("b", number) for number in range(LABS)]
    for describe in (lambda n: n.controller, lambda n: n.loopback, lambda n: n.pods(0), lambda n: n.host(7)):
        assert len({describe(network) for network in networks}) == LABS


def test_a_store_is_made_anew_over_the_remains_of_a_killed_copy(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store/blob").write_text("new")
    (tmp_path / "target").mkdir()
    (tmp_path / "target/stray").write_text("old")
    copy_store(tmp_path / "store", tmp_path / "target")
    assert sorted(path.name for path in (tmp_path / "target").iterdir()) == ["blob"]
