# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a pod has proved counts while nothing changes, on the host and in the cluster, and not for ever."""
from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import JOURNAL
from ansible_collections.gpuops.nvidia.plugins.module_utils.validation.checks import PASSED, SKIPPED, UNKNOWN, Check
from ansible_collections.gpuops.nvidia.plugins.module_utils.validation.on_cluster import (
    Probe,
    proof_of,
    proved,
    state_of,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.validation.proof import PATH, keep_proof, kept_proof

PROOF = {"of": "8ab51fd4f3b8d4c2", "at": 1767225600, "evidence": "a pod that asked for one device got /dev/nvidia0"}
ASKED = Probe(expected={"nvidia.com/gpu": 2}, divided=False, image="busybox", namespace="default", tolerations=[],
              runtime_class="nvidia", compute="quick")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    (tmp_path / "run").mkdir()
    (tmp_path / "var/lib/gpuops").mkdir(parents=True)
    (tmp_path / JOURNAL[1:]).write_text("{}\n")
    return Host(str(tmp_path))


def of(host: Host, **more: Any) -> Dict[str, Any]:
    """A proof of a pod that was run after this host was read."""
    return {**kept_proof(host), **PROOF, **more}


class TestOnTheHost:
    def test_it_is_kept_for_root_alone_and_forgotten_on_request(self, host: Host) -> None:
        read = kept_proof(host)
        proof = {**read, **PROOF}
        assert keep_proof(host, proof, check_mode=False) and kept_proof(host) == proof
        assert host.mode(PATH) == 0o600 and not keep_proof(host, proof, check_mode=False)
        assert keep_proof(host, {}, check_mode=False) and kept_proof(host) == read and not host.exists(PATH)
        assert not keep_proof(host, {}, check_mode=False)

    def test_check_mode_says_what_would_be_and_does_nothing(self, host: Host) -> None:
        proof = of(host)
        assert keep_proof(host, proof, check_mode=True) and not host.exists(PATH)
        keep_proof(host, proof, check_mode=False)
        assert keep_proof(host, {}, check_mode=True) and kept_proof(host) == proof

    def test_a_step_of_ours_that_began_ends_it(self, host: Host) -> None:
        keep_proof(host, of(host), check_mode=False)
        host.append(JOURNAL, '{"event": "started"}')
        assert "of" not in kept_proof(host)

    def test_so_does_one_that_began_before_it_was_kept(self, host: Host) -> None:
        """Another run's, while the pod of this one was waited for."""
        keep_proof(host, of(host), check_mode=False)
        late = of(host, at=PROOF["at"] + 60)
        host.append(JOURNAL, '{"event": "started"}')
        assert keep_proof(host, late, check_mode=False) and not host.exists(PATH)
        assert "of" not in kept_proof(host)

    @pytest.mark.parametrize("socket", [
        "/var/lib/kubelet/device-plugins/kubelet.sock", "/run/containerd/containerd.sock", "/run/crio/crio.sock",
        "/run/k3s/containerd/containerd.sock"])
    def test_so_does_a_start_of_who_makes_containers(self, host: Host, socket: str) -> None:
        """It may have another configuration now, and is of the same release."""
        host.write(socket, "")
        keep_proof(host, of(host), check_mode=False)
        assert kept_proof(host)["of"] == PROOF["of"]
        host.write(socket, "")
        assert "of" not in kept_proof(host)

    def test_one_of_a_host_that_was_not_read_is_not_kept(self, host: Host) -> None:
        assert not keep_proof(host, PROOF, check_mode=False) and not host.exists(PATH)

    def test_who_may_not_look_has_none(self, host: Host, tmp_path: Path) -> None:
        """Before the first proof too, when only the journal is there."""
        if os.geteuid() != 0:
            pytest.skip("needs root, to be nobody")
        (tmp_path / "var/lib/gpuops").chmod(0o700)
        reading, writing = os.pipe()
        if os.fork() == 0:
            try:
                os.seteuid(65534)
                os.write(writing, repr(kept_proof(host)).encode())
            finally:
                os._exit(0)
        os.close(writing)
        assert os.read(reading, 100) == b"{}"
        os.close(reading)
        os.wait()

    def test_two_controllers_may_tell_it_at_once(self, host: Host) -> None:
        errors: List[BaseException] = []

        def tell(name: str) -> None:
            try:
                for number in range(100):
                    keep_proof(host, of(host, of=name, at=number), check_mode=False)
            except GpuOpsError as error:
                errors.append(error)

        threads = [threading.Thread(target=tell, args=(name,)) for name in ("one", "another")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == [] and kept_proof(host)["at"] == 99

    @pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"of": "x"}', '{"of": "x", "changes": ""}'])
    def test_what_cannot_be_read_proves_nothing(self, host: Host, text: str) -> None:
        host.make_directory("/run/gpuops", 0o700)
        host.write(PATH, text, 0o600)
        assert "of" not in kept_proof(host)


def node(ready: str = "True", heartbeat: str = "now", deadlock: str = "False", **system: str) -> Dict[str, Any]:
    return {"metadata": {"name": "gpu-1", "uid": "node"}, "status": {
        "allocatable": {"nvidia.com/gpu": "2", "cpu": "64"},
        "nodeInfo": {"bootID": "boot", "kubeletVersion": "v1.34.0", "containerRuntimeVersion": "containerd://2.3",
                     **system},
        "conditions": [{"type": "Ready", "status": ready, "lastHeartbeatTime": heartbeat},
                       {"type": "KernelDeadlock", "status": deadlock}]}}


def plugin(
    container: str = "one", uid: str = "plugin", path: str = "/var/lib/kubelet/device-plugins"
) -> Dict[str, Any]:
    return {"metadata": {"uid": uid}, "spec": {"volumes": [{"name": "a"}, {"hostPath": {"path": path}}]},
            "status": {"containerStatuses": [{"containerID": "containerd://" + container}]}}


CLASS = {"metadata": {"resourceVersion": "7"}, "handler": "nvidia"}
STATE = state_of(node(), [plugin()], ASKED, CLASS)


@pytest.mark.parametrize("state", [
    state_of(node(bootID="next"), [plugin()], ASKED, CLASS),
    state_of(node(kubeletVersion="v1.35.0"), [plugin()], ASKED, CLASS),
    state_of(node(containerRuntimeVersion="containerd://2.4"), [plugin()], ASKED, CLASS),
    state_of(node(kernelVersion="6.12"), [plugin()], ASKED, CLASS),
    state_of(node(), [plugin(container="two")], ASKED, CLASS),
    state_of(node(), [plugin(uid="another")], ASKED, CLASS),
    state_of(node(), [plugin(), plugin(uid="a second")], ASKED, CLASS),
    state_of(node(), [], ASKED, CLASS),
    # Its kubelet starts no pod any more, and what it offered is on offer still
    state_of(node(ready="Unknown"), [plugin()], ASKED, CLASS),
    state_of(node(), [plugin()], replace(ASKED, image="alpine"), CLASS),
    # One that has only seen its device has not computed on it
    state_of(node(), [plugin()], replace(ASKED, compute="none"), CLASS),
    state_of(node(), [plugin()], replace(ASKED, tolerations=[{"operator": "Exists"}]), CLASS),
    state_of({**node(), "status": {**node()["status"], "allocatable": {"nvidia.com/gpu": "1"}}}, [plugin()], ASKED,
             CLASS),
    state_of(node(), [plugin()], ASKED, {**CLASS, "handler": "runc"}),
    state_of(node(), [plugin()], ASKED, {**CLASS, "scheduling": {"nodeSelector": {"gpu": "other"}}}),
    state_of(node(), [plugin()], ASKED, None),
])
def test_another_state_is_another_one(state: str) -> None:
    assert state != STATE and proved({**PROOF, "of": STATE}, state, PROOF["at"] + 1, 60) is None  # type: ignore[operator]


@pytest.mark.parametrize("pods", [
    [plugin(), {"metadata": {"uid": "trainer"}, "spec": {"containers": []}}],
    [plugin(path="/var/lib/kubelet/device-plugins/")]])
def test_what_does_not_matter_changes_nothing(pods: List[Dict[str, Any]]) -> None:
    assert state_of(node(), pods, ASKED, {**CLASS, "metadata": {"resourceVersion": "8"}}) == STATE
    assert state_of(node(heartbeat="later", deadlock="True"), pods, ASKED, CLASS) == STATE


def test_it_counts_for_so_long_and_not_from_the_future() -> None:
    read = {"of": "old", "at": 1, "changes": "1 2 3"}
    proof = proof_of([Check("pod", PASSED, "a pod got /dev/nvidia0")], STATE, 1000, read)
    assert proof == {"of": STATE, "at": 1000, "evidence": "a pod got /dev/nvidia0", "changes": "1 2 3"}
    told = proved(proof, STATE, 1000 + 600, 601)
    assert told is not None and told.status == SKIPPED
    assert told.evidence.startswith("not probed again: 10 minutes ago a pod got /dev/nvidia0")
    assert [proved(proof, STATE, now, seconds) for now, seconds in (
        (1600, 600), (999, 600), (1000, 0))] == [None, None, None]
    assert proved({}, STATE, 1000, 600) is None and proved({**proof, "at": "x"}, STATE, 1000, 600) is None


GOT = Check("pod", PASSED, "got /dev/nvidia0")


@pytest.mark.parametrize("checks, evidence", [
    ([GOT, Check("pod_compute", PASSED, "132 compute")], "got /dev/nvidia0; 132 compute"),
    ([GOT, Check("pod_compute", SKIPPED, "no python3")], "got /dev/nvidia0; no python3"),
    ([GOT, Check("pod_compute", UNKNOWN, "131 of 132 were seen")], None),
    ([Check("pod", SKIPPED, "all 8 in use")], None),
])
def test_what_a_pod_has_not_shown_is_no_proof(checks: List[Check], evidence: Any) -> None:
    assert proof_of(checks, STATE, 1000, {"changes": "1"}).get("evidence") == evidence
