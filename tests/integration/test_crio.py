# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A node whose kubelet talks to CRI-O, from bare to GPU node and back: pods go on over everything that we do to it."""
from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any, Dict, FrozenSet, Iterator, List, Tuple

import gpu_pods
import pytest
from laboratory import Fleet, different, new_lab

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.cri import CriClient

HOST = "crio"
DIRECTORY = "/etc/crio/crio.conf.d"
OURS = DIRECTORY + "/99-gpuops-nvidia.conf"
LATE = DIRECTORY + "/zzz-gpuops-nvidia.conf"
UNIT = "/etc/systemd/system/crio.service.d/test.conf"
PACKAGES = "http://packages.gpulab:8480/libnvidia-container"
TOOLKIT = {"repository_url": PACKAGES + "/stable/deb/$(ARCH)", "repository_key": PACKAGES + "/gpgkey"}
# A module is a Python that reads its program from standard input, or one of Ansible's files
KILL_MODULE = "pkill -9 -fx '[^ ]*/python3( [^ ]*AnsiballZ[^ ]*)?'"
# The journal with the toolkit in it, as nothing but its installation leaves it
KEPT = "/root/journal"


@dataclass(frozen=True)
class Container:
    """What a container keeps as long as nobody touches it. process: of `sleep` on the host."""

    identity: str
    started: str
    restarts: int
    process: str


class World:
    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.delivered = self.files()

    def sh(self, script: str) -> str:
        return self.fleet.say(HOST, "sh", "-c", script)

    def put(self, path: str, text: str) -> None:
        self.fleet.lab.host(HOST).ssh(["sh", "-c", 'mkdir -p "$(dirname "$0")" && cat > "$0"', path], feed=text)

    def files(self) -> Dict[str, str]:
        return self.fleet.fingerprint(HOST, "/etc/crio")

    def module(self, name: str = "container_runtime", *options: str, **arguments: Any) -> Dict[str, Any]:
        played = self.fleet.tasks(HOST, [{"gpuops.nvidia." + name: arguments}], *options)
        return played.result(HOST, name)

    def done(self, name: str = "container_runtime", **arguments: Any) -> Dict[str, Any]:
        result = self.module(name, **arguments)
        assert not result.get("failed"), result
        return result

    def daemon(self) -> str:
        return self.sh("systemctl show crio --property MainPID")

    def restart(self) -> str:
        return self.sh("systemctl daemon-reload; systemctl reset-failed crio; systemctl restart crio; "
                       "systemctl is-active crio")

    def client(self) -> CriClient:
        return CriClient("/proc/%d/root/run/crio/crio.sock" % (self.fleet.lab.host(HOST).init_pid or 0))

    def handlers(self) -> FrozenSet[str]:
        return frozenset(self.client().status().handlers)

    def wait(self, handler: str) -> None:
        deadline = time.monotonic() + 20
        while handler not in self.handlers():
            assert time.monotonic() < deadline, "CRI-O shows no handler %s" % handler
            time.sleep(0.2)

    def container(self) -> Container:
        (status,) = self.status("stays")["containerStatuses"]
        return Container(status["containerID"], status["state"]["running"]["startedAt"], status["restartCount"],
                         self.sh("pgrep -f '^sleep 100000'"))

    def status(self, name: str) -> Dict[str, Any]:
        return dict(json.loads(self.fleet.lab.kubectl(["get", "pod", name, "-o", "json"]).stdout)["status"])

    def clean(self) -> None:
        """CRI-O as it was delivered, whatever a test left."""
        self.sh("rm -rf %s /var/lib/gpuops; test ! -d %s || cp -a %s /var/lib/gpuops; "
                "cd %s && ls | grep -v -e ^10- -e ^20- | xargs -r rm -f" % (UNIT, KEPT, KEPT, DIRECTORY))
        if "nvidia" in self.sh("grep -rl nvidia /etc/crio") or self.handlers() != {"runc"}:
            assert self.restart() == "active"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    lab = new_lab("crio")
    lab.up("cri-o")
    yield World(Fleet(lab, tmp_path_factory.mktemp("crio")))
    lab.down()


@pytest.fixture(scope="module")
def stays(world: World) -> Container:
    """A container that runs from here to the last test."""
    kept = gpu_pods.pod("stays", HOST, 0)
    del kept["spec"]["runtimeClassName"]
    kept["spec"]["containers"][0]["command"] = ["sleep", "100000"]
    gpu_pods.run(world.fleet, [kept])
    return world.container()


@pytest.fixture
def bare(world: World, stays: Container) -> Iterator[World]:
    """CRI-O as delivered; afterwards the container must be what it was."""
    world.clean()
    yield world
    world.clean()
    assert world.container() == stays


@pytest.fixture(scope="module")
def nvidia_runtime(world: World) -> None:
    world.done("container_toolkit", **TOOLKIT)
    world.sh("cp -a /var/lib/gpuops " + KEPT)


@pytest.fixture
def toolkit(nvidia_runtime: None, bare: World) -> World:
    """NVIDIA's runtime is installed, and nothing else."""
    return bare


def test_the_kubelet_talks_to_cri_o(world: World) -> None:
    info = world.fleet.node(HOST)["status"]["nodeInfo"]
    assert info["containerRuntimeVersion"] == "cri-o://1.34.0"
    assert world.sh("systemctl is-active containerd") == "inactive"
    assert world.handlers() == {"runc"}


def test_a_handler_waits_for_its_program(toolkit: World) -> None:
    """CRI-O leaves a handler out whose program is not there: the file waits, and nothing is broken."""
    program = "/usr/bin/nvidia-container-runtime"
    toolkit.sh("mv %s %s.away" % (program, program))
    try:
        toolkit.done()
        assert toolkit.handlers() == {"runc"}
        assert toolkit.module()["changed"] is False
    finally:
        toolkit.sh("mv %s.away %s" % (program, program))
    assert toolkit.done()["applied"] == ["runtime/runtime.restart/crio.service"]
    assert toolkit.handlers() == {"runc", "nvidia"}


@pytest.mark.variation
def test_a_reload_shows_a_handler_that_no_pod_gets(bare: World) -> None:
    """Why we restart: cri-o issue 10202."""
    bare.put(DIRECTORY + "/50-late.conf", (
        '[crio.runtime.runtimes.late]\nruntime_path = "/usr/libexec/crio/runc"\n'
        'monitor_path = "/usr/libexec/crio/conmon"\n'))
    daemon = bare.daemon()
    bare.sh("systemctl reload crio")
    bare.wait("late")
    assert bare.daemon() == daemon
    lab = bare.fleet.lab
    late = gpu_pods.pod("late", HOST, 0)
    late["spec"]["runtimeClassName"] = "late"
    lab.kubectl(["apply", "-f", "-"], feed=json.dumps({
        "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "late"}, "handler": "late"}))
    lab.kubectl(["apply", "-f", "-"], feed=json.dumps(late))
    try:
        deadline = time.monotonic() + 30
        while "failed to find runtime handler late" not in lab.kubectl(["get", "events"]).stdout:
            assert time.monotonic() < deadline, lab.kubectl(["get", "events"]).stdout
            time.sleep(1)
        assert bare.restart() == "active"
        lab.kubectl(["wait", "--for=condition=Ready", "--timeout=90s", "pod", "late"])
    finally:
        lab.kubectl(["delete", "pod,runtimeclass", "late", "--now", "--ignore-not-found"])


def test_the_handler_comes_and_goes_and_pods_go_on(toolkit: World) -> None:
    files, daemon = toolkit.files(), toolkit.daemon()
    planned = toolkit.module("container_runtime", "--check")
    assert (toolkit.files(), toolkit.daemon()) == (files, daemon)
    done = toolkit.done()
    assert done["plan"]["steps"] == planned["plan"]["steps"]
    assert done["applied"] == ["runtime/runtime_config.write/" + OURS, "runtime/runtime.restart/crio.service"]
    assert list(different(files, toolkit.files())) == [OURS]
    assert toolkit.handlers() == {"runc", "nvidia"}
    text = toolkit.sh("cat " + OURS)
    assert 'monitor_path = "/usr/libexec/crio/conmon"' in text
    assert 'runtime_path = "/usr/bin/nvidia-container-runtime"' in text

    daemon = toolkit.daemon()
    assert toolkit.module()["changed"] is False
    assert toolkit.daemon() == daemon

    assert toolkit.done(state="absent")["applied"] == [
        "runtime/runtime_config.remove/" + OURS, "runtime/runtime.restart/crio.service"]
    assert toolkit.files() == files
    assert toolkit.handlers() == {"runc"}
    assert toolkit.module(state="absent")["changed"] is False


@pytest.mark.variation
def test_a_restart_that_was_put_off_or_cut_short_is_made_up_for(toolkit: World) -> None:
    daemon = toolkit.daemon()
    result = toolkit.done(allowed_disruption="service_restart")
    assert [step["action"] for step in result["deferred"]] == ["runtime.restart"]
    assert (toolkit.daemon(), toolkit.handlers()) == (daemon, {"runc"})
    assert toolkit.done()["applied"] == ["runtime/runtime.restart/crio.service"]
    assert "nvidia" in toolkit.handlers()
    # as a removal leaves it that was killed before the restart
    toolkit.sh("rm " + OURS)
    assert toolkit.done(state="absent")["applied"][0] == "runtime/runtime.restart/crio.service"
    assert toolkit.handlers() == {"runc"}


@pytest.mark.variation
def test_a_run_that_is_killed_is_completed_by_the_next(toolkit: World) -> None:
    before = toolkit.files()
    # CRI-O takes its time to come, in which the module is killed
    toolkit.put(UNIT, "[Service]\nExecStartPre=/bin/sleep 4\n")
    toolkit.sh("systemctl daemon-reload")
    play = toolkit.fleet.scratch / "killed.json"
    play.write_text(json.dumps([{"hosts": HOST, "gather_facts": False,
                                 "tasks": [{"gpuops.nvidia.container_runtime": {}}]}]))
    running = toolkit.fleet.start(str(play))
    deadline = time.monotonic() + 60
    while toolkit.sh("systemctl is-active crio") == "active":
        assert time.monotonic() < deadline, "CRI-O was not restarted"
        time.sleep(0.2)
    toolkit.sh(KILL_MODULE)
    assert running.wait().code != 0
    assert list(different(before, toolkit.files())) == [OURS]
    deadline = time.monotonic() + 30
    while toolkit.sh("systemctl is-active crio") != "active":
        assert time.monotonic() < deadline, "CRI-O does not start with the files of a run that was killed"
        time.sleep(0.5)
    toolkit.done()
    assert toolkit.handlers() == {"runc", "nvidia"}
    assert toolkit.module()["changed"] is False
    toolkit.done(state="absent")
    assert toolkit.files() == before


def test_a_crio_that_does_not_come_up_gets_its_files_back(toolkit: World) -> None:
    files = toolkit.files()
    toolkit.put(UNIT, "[Service]\nExecStartPre=/bin/sh -c '! grep -rq nvidia-container-runtime /etc/crio'\n")
    toolkit.sh("systemctl daemon-reload")
    result = toolkit.module()
    assert result["failed"]
    assert "the files were put back and CRI-O is up again" in result["remedy"], result
    assert result["restored"] == [OURS]
    assert toolkit.files() == files
    assert toolkit.client().status().ready


@pytest.mark.parametrize(("name", "text", "told"), [
    pytest.param("30-broken.conf", "[crio.runtime]\nlog_level = \"info\"\n[crio.runtime\n", "30-broken.conf:3: ",
                 marks=pytest.mark.variation),
    pytest.param("30-none.conf", "[crio.runtime]\ndefault_runtime = \"none\"\n", "default_runtime set to",
                 marks=pytest.mark.variation),
    ("99-nvidia.conf", "[crio.runtime.runtimes.nvidia]\nruntime_path = \"/usr/local/nvidia/toolkit/nvidia\"\n",
     "99-nvidia.conf has the handler 'nvidia' with runtime_path"),
], ids=["no TOML", "a default that is not there", "another program"])
def test_what_stands_against_it_is_named_and_nothing_is_touched(bare: World, name: str, text: str, told: str) -> None:
    bare.put("%s/%s" % (DIRECTORY, name), text)
    files, daemon = bare.files(), bare.daemon()
    result = bare.module()
    assert result["failed"]
    assert told in result["msg"]
    assert (bare.files(), bare.daemon()) == (files, daemon)


def test_what_nvidia_ctk_writes_stops_crio_and_can_be_taken_over(toolkit: World) -> None:
    """Its entry has no monitor_path, because it does not read the directory; conmon is in no directory of PATH."""
    leftover = DIRECTORY + "/99-nvidia.toml"
    toolkit.sh("nvidia-ctk runtime configure --runtime=crio")
    files = toolkit.files()
    assert leftover in files
    refused = toolkit.module()
    assert refused["failed"]
    assert leftover in refused["msg"] and "no monitor_path" in refused["msg"]
    assert toolkit.restart() != "active"
    assert "conmon" in toolkit.sh("journalctl -u crio -n 20")
    toolkit.sh("mv %s /root/" % leftover)
    assert toolkit.restart() == "active"
    toolkit.sh("mv /root/99-nvidia.toml " + DIRECTORY)

    assert toolkit.done(adopt=True)["applied"][0] == "runtime/runtime_config.write/" + LATE
    assert "nvidia" in toolkit.handlers()
    assert list(different(files, toolkit.files())) == [LATE]
    refused = toolkit.module(state="absent")
    assert refused["failed"] and "CRI-O would not start again" in refused["msg"] and leftover in refused["msg"]
    toolkit.sh("rm " + leftover)
    assert [step.split("/", 2)[1] for step in toolkit.done()["applied"]] == [
        "runtime_config.write", "runtime_config.remove", "runtime.restart"]
    assert list(different(toolkit.delivered, toolkit.files())) == [OURS]


@pytest.mark.variation
def test_options_of_the_daemon_are_seen(toolkit: World) -> None:
    toolkit.put("/etc/sysconfig/crio", (
        'CRIO_CONFIG_OPTIONS="--config-dir=/etc/crio/other --default-runtime=runc"\n'))
    toolkit.sh("cp -a %s /etc/crio/other" % DIRECTORY)
    try:
        assert toolkit.restart() == "active"
        assert toolkit.done()["applied"][0] == "runtime/runtime_config.write//etc/crio/other/99-gpuops-nvidia.conf"
        assert "nvidia" in toolkit.handlers()
        refused = toolkit.module(default_handler=True)
        assert refused["failed"] and "the command line of CRI-O has default_runtime" in refused["msg"]
        toolkit.done(state="absent")
    finally:
        toolkit.sh("rm -rf /etc/sysconfig/crio /etc/crio/other")
        assert toolkit.restart() == "active"


@pytest.fixture(scope="module")
def installed(world: World, stays: Container) -> World:
    world.clean()
    world.fleet.play("gpuops.nvidia.site")
    return world


def test_site_makes_it_a_gpu_node_and_pods_go_on(installed: World, stays: Container) -> None:
    assert installed.container() == stays
    assert installed.fleet.node(HOST)["status"]["allocatable"]["nvidia.com/gpu"] == "2"
    assert "nvidia" in installed.handlers()
    # NVIDIA's runtime calls the one that CRI-O calls, which is in no directory of PATH
    assert 'runtimes = ["/usr/libexec/crio/runc"]' in installed.sh("cat /etc/nvidia-container-runtime/config.toml")
    again = installed.fleet.play("gpuops.nvidia.site")
    assert again.changes() == []


@pytest.mark.parametrize("runtime_class", ["nvidia", ""])
def test_a_pod_gets_the_gpu_that_it_asked_for(installed: World, runtime_class: str) -> None:
    """By NVIDIA's runtime, and by CDI of CRI-O itself."""
    names = ["first", "second"]
    asked: List[Dict[str, Any]] = [gpu_pods.pod(name, HOST, 1) for name in names]
    for each in asked:
        if not runtime_class:
            del each["spec"]["runtimeClassName"]
    try:
        nodes = gpu_pods.minors(installed.fleet, HOST)
        got: List[Tuple[str, ...]] = []
        for name, each in zip(names, gpu_pods.run(installed.fleet, asked)):
            given = gpu_pods.allocated(installed.fleet, HOST, each["metadata"]["uid"])
            text = gpu_pods.seen(installed.fleet, name)
            assert gpu_pods.devices(text) == sorted(nodes[uuid] for uuid in given)
            assert {uuid for uuid in nodes if uuid in text} == set(given)
            got.append(tuple(given))
        assert len(set(got)) == 2
    finally:
        installed.fleet.lab.kubectl(["delete", "pod", "--now", "--ignore-not-found", *names])


def test_uninstall_gives_everything_back_and_pods_go_on(installed: World, stays: Container) -> None:
    installed.fleet.play("gpuops.nvidia.uninstall")
    assert installed.files() == installed.delivered
    assert installed.handlers() == {"runc"}
    assert installed.container() == stays


def test_after_a_reboot_the_node_is_ready(world: World) -> None:
    world.fleet.lab.reboot(HOST)
    deadline = time.monotonic() + 60
    while True:
        try:
            if world.client().status().ready:
                return
        except GpuOpsError:
            assert time.monotonic() < deadline, "CRI-O does not answer"
        time.sleep(0.5)
