# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a pod has proved counts while nothing changes, on the host and in the cluster, and not for ever."""
from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import JOURNAL
from ansible_collections.gpuops.nvidia.plugins.module_utils.validation.checks import PASSED, SKIPPED, Check
from ansible_collections.gpuops.nvidia.plugins.module_utils.validation.on_cluster import proof_of, proved, state_of
from ansible_collections.gpuops.nvidia.plugins.module_utils.validation.proof import PATH, keep_proof, kept_proof

PROOF = {"of": "8ab51fd4f3b8d4c2", "at": 1767225600, "evidence": "a pod that asked for one device got /dev/nvidia0"}
ASKED = {"expected": {"nvidia.com/gpu": 2}, "image": "busybox"}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    (tmp_path / "run").mkdir()
    (tmp_path / "var/lib/gpuops").mkdir(parents=True)
    (tmp_path / JOURNAL[1:]).write_text("{}\n")
    return Host(str(tmp_path))


class TestOnTheHost:
    def test_it_is_kept_for_root_alone_and_forgotten_on_request(self, host: Host) -> None:
        assert keep_proof(host, PROOF, check_mode=False) and kept_proof(host) == PROOF
        assert host.mode(PATH) == 0o600 and not keep_proof(host, PROOF, check_mode=False)
        assert keep_proof(host, {}, check_mode=False) and kept_proof(host) == {} and not host.exists(PATH)
        assert not keep_proof(host, {}, check_mode=False)

    def test_check_mode_says_what_would_be_and_does_nothing(self, host: Host) -> None:
        assert keep_proof(host, PROOF, check_mode=True) and not host.exists(PATH)
        keep_proof(host, PROOF, check_mode=False)
        assert keep_proof(host, {}, check_mode=True) and kept_proof(host) == PROOF

    def test_a_step_of_ours_that_began_ends_it(self, host: Host) -> None:
        keep_proof(host, PROOF, check_mode=False)
        host.append(JOURNAL, '{"event": "started"}')
        assert kept_proof(host) == {}

    @pytest.mark.parametrize("text", ["", "{", "[]", '{"proof": 1}', '{"proof": {"of": "x"}, "changes": ""}'])
    def test_what_cannot_be_read_proves_nothing(self, host: Host, text: str) -> None:
        host.make_directory("/run/gpuops", 0o700)
        host.write(PATH, text, 0o600)
        assert kept_proof(host) == {}


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


STATE = state_of(node(), [plugin()], ASKED)


@pytest.mark.parametrize("state", [
    state_of(node(bootID="next"), [plugin()], ASKED),
    state_of(node(kubeletVersion="v1.35.0"), [plugin()], ASKED),
    state_of(node(containerRuntimeVersion="containerd://2.4"), [plugin()], ASKED),
    state_of(node(kernelVersion="6.12"), [plugin()], ASKED),
    state_of(node(), [plugin(container="two")], ASKED),
    state_of(node(), [plugin(uid="another")], ASKED),
    state_of(node(), [plugin(), plugin(uid="a second")], ASKED),
    state_of(node(), [], ASKED),
    # Its kubelet starts no pod any more, and what it offered is on offer still
    state_of(node(ready="Unknown"), [plugin()], ASKED),
    state_of(node(), [plugin()], {**ASKED, "image": "alpine"}),
    state_of({**node(), "status": {**node()["status"], "allocatable": {"nvidia.com/gpu": "1"}}}, [plugin()], ASKED),
])
def test_another_state_is_another_one(state: str) -> None:
    assert state != STATE and proved({**PROOF, "of": STATE}, state, PROOF["at"] + 1, 60) is None  # type: ignore[operator]


@pytest.mark.parametrize("pods", [
    [plugin(), {"metadata": {"uid": "trainer"}, "spec": {"containers": []}}],
    [plugin(path="/var/lib/kubelet/device-plugins/")]])
def test_what_does_not_matter_changes_nothing(pods: List[Dict[str, Any]]) -> None:
    assert state_of(node(heartbeat="later", deadlock="True"), pods, ASKED) == STATE


def test_it_counts_for_so_long_and_not_from_the_future() -> None:
    proof = proof_of(Check("pod", PASSED, "a pod got /dev/nvidia0"), STATE, 1000)
    told = proved(proof, STATE, 1000 + 600, 601)
    assert told is not None and told.status == SKIPPED
    assert told.evidence.startswith("not probed again: 10 minutes ago a pod got /dev/nvidia0")
    assert [proved(proof, STATE, now, seconds) for now, seconds in (
        (1600, 600), (999, 600), (1000, 0))] == [None, None, None]
    assert proved({}, STATE, 1000, 600) is None and proved({**proof, "at": "x"}, STATE, 1000, 600) is None
