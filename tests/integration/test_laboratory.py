# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The laboratory itself: a host is a machine, and what is killed can be mended or removed without remains."""
from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Iterator

import pytest
from laboratory import new_lab

from gpulab import cgroups
from gpulab.lab import Lab
from gpulab.processes import LabError, run
from gpulab.topology import load

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="boots hosts: needs root")

COMMAND = Path(__file__).resolve().parents[1] / "lab" / "lab"


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    lab = new_lab("selftest")
    lab.up("bare")
    yield lab
    lab.down()


def test_a_host_is_bare(lab: Lab) -> None:
    assert lab.ssh("gpu", ["systemctl", "is-system-running", "--wait"], check=False).stdout.strip() == "running"
    assert "nvidia" not in lab.ssh("gpu", ["cat", "/etc/containerd/config.toml"]).stdout
    assert lab.ssh("gpu", ["sh", "-c", "ls /dev/nvidia* /usr/bin/nvidia-smi"], check=False).stdout == ""
    assert len(lab.ssh("gpu", ["lspci", "-d", "10de::0302"]).stdout.splitlines()) == 2
    assert "nouveau" in lab.ssh("gpu", ["lsmod"]).stdout


def test_a_host_runs_the_kernel_that_it_boots(lab: Lab) -> None:
    release = lab.ssh("gpu", ["uname", "-r"]).stdout.strip()
    assert lab.ssh("gpu", ["test", "-e", "/boot/vmlinuz-%s" % release], check=False).returncode == 0
    assert release != os.uname().release


def test_a_host_installs_from_the_lab_alone(lab: Lab) -> None:
    lab.ssh("gpu", ["apt-get", "update"])
    sources = lab.ssh("gpu", ["apt-cache", "policy"]).stdout
    assert "http://packages.gpulab:8480/debian" in sources
    assert lab.ssh("gpu", ["apt-cache", "show", "dkms"]).returncode == 0
    key = lab.network.packages_url + "/cuda/repos/debian12/x86_64/gpulab.pub"
    with urllib.request.urlopen(key, timeout=5) as answer:
        assert answer.read().startswith(b"-----BEGIN PGP PUBLIC KEY BLOCK-----")


def test_a_host_knows_nothing_beyond_its_laboratory(lab: Lab) -> None:
    """An air gap: drivers, toolkits and images come from its mirror, in every test that has them."""
    assert lab.ssh("gpu", ["getent", "hosts", "example.com"], check=False).returncode == 2
    assert lab.ssh("gpu", ["getent", "hosts", "packages.gpulab"]).stdout.split()[1] == "packages.gpulab"
    assert lab.ssh("gpu", ["test", "-e", "/etc/resolv.conf"], check=False).returncode == 1


def test_a_reboot_is_a_new_boot_of_the_same_machine(lab: Lab) -> None:
    host = lab.host("gpu")
    lab.ssh("gpu", ["touch", "/etc/kept", "/run/lost"])
    before, identity = host.boot_id(), lab.ssh("gpu", ["cat", "/etc/machine-id"]).stdout
    lab.reboot("gpu")
    assert host.boot_id() != before
    assert lab.ssh("gpu", ["cat", "/etc/machine-id"]).stdout == identity
    assert lab.ssh("gpu", ["ls", "/etc/kept"]).returncode == 0
    assert lab.ssh("gpu", ["ls", "/run/lost"], check=False).returncode != 0


def test_a_power_cut_is_mended_by_up(lab: Lab) -> None:
    lab.kill("gpu")
    assert not lab.host("gpu").answers()
    assert not cgroups.exists(lab.host("gpu").cgroup)
    lab.up("bare")
    assert lab.host("gpu").answers()


def test_a_reset_host_is_as_it_was_delivered(lab: Lab) -> None:
    lab.ssh("gpu", ["sh", "-c", "echo changed > /etc/hostname; touch /etc/stray; rm /usr/bin/lspci"])
    started = time.monotonic()
    lab.reset("gpu")
    assert time.monotonic() - started < 10
    assert lab.ssh("gpu", ["cat", "/etc/hostname"]).stdout == "gpu\n"
    assert lab.ssh("gpu", ["ls", "/etc/stray"], check=False).returncode != 0
    assert lab.ssh("gpu", ["lspci", "-d", "10de:"]).stdout


def test_up_leaves_alone_what_runs(lab: Lab) -> None:
    before = lab.host("gpu").boot_id()
    lab.up("bare")
    assert lab.host("gpu").boot_id() == before


def test_another_topology_is_refused_with_the_way_out(lab: Lab) -> None:
    with pytest.raises(LabError, match="lab --name %s down" % lab.name):
        lab.up("single")


def test_a_host_that_lost_its_supervisor_is_booted_anew(lab: Lab) -> None:
    host = lab.host("gpu")
    pid, before = host.supervisor.pid, host.boot_id()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    lab.up("bare")
    assert host.supervisor.pid not in (None, pid)
    assert host.boot_id() != before


@pytest.mark.parametrize("seconds", [0.6, 1.0, 1.4, 2.0])
def test_a_killed_up_can_be_continued_and_removed(seconds: float) -> None:
    lab = new_lab("crashed")
    environment = {**os.environ, "GPULAB_NAME": lab.name}
    process = subprocess.Popen([sys.executable, str(COMMAND), "up", "bare"], env=environment,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(seconds)
    process.kill()
    process.wait()
    lab.up("bare")
    assert lab.ssh("gpu", ["hostname"]).stdout == "gpu\n"
    cgroup, bridge = lab.host("gpu").cgroup, lab.network.bridge
    lab.down()
    assert not lab.paths.top.exists() and not cgroups.exists(cgroup)
    assert bridge not in run(["ip", "-brief", "link"])
    assert "/run/%s/" % lab.name not in run(["ps", "-eo", "args"])


def test_labs_run_side_by_side(lab: Lab) -> None:
    other = new_lab("neighbour")
    try:
        other.up(load("bare"))
        assert other.host("gpu").address != lab.host("gpu").address
        assert other.host("gpu").boot_id() != lab.host("gpu").boot_id()
    finally:
        other.down()
    assert lab.host("gpu").answers()
