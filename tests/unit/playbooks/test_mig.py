# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What site makes of a plan for MIG: who leaves the node, what is put off, and what the Node says of its layout."""
from __future__ import annotations

from dataclasses import replace

from canned import Hosts, planned
from cluster_objects import node, pod

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Disruption, Plan, Requirement, Step

LAYOUT, STATE = "nvidia.com/mig.config", "nvidia.com/mig.config.state"
MODE = Step("mig", "mig.mode", "0000:17:00.0", "GPU 0 is to be divided.", Disruption.reboot)
BOOT = Requirement("mig", "reboot", "0000:17:00.0", "GPU 0 cannot be reset.", Disruption.reboot)
WITH_BOOT = Plan(host="gpu-1", steps=(MODE,), requirements=(BOOT,))


class TestAReboot:
    @staticmethod
    def told(in_words: Hosts, allowed: Disruption) -> str:
        in_words.api.state.nodes = [node("gpu-1", labels={LAYOUT: "all-balanced"})]
        in_words.api.state.pods = [pod("trainer")]
        return in_words.site(
            {"gpu_plan": planned(WITH_BOOT, allowed),
             "mig": {"changed": True, "reboot_required": True, "plan": WITH_BOOT.to_dict()}},
            gpu_mig_labels=True, gpu_allowed_disruption=allowed.name)

    def test_that_is_allowed_is_done(self, in_words: Hosts) -> None:
        told = self.told(in_words, Disruption.reboot)
        assert "reboot with local connection would reboot the control node" in told, told
        assert not in_words.api.state.pods and in_words.label(STATE) == "failed"

    def test_that_is_not_allowed_drains_nothing_and_is_told(self, in_words: Hosts) -> None:
        told = self.told(in_words, Disruption.driver_reload)
        assert "Put off, as gpu_allowed_disruption says: mig/mig.mode/0000:17:00.0 (reboot: " in told, told
        assert "would reboot" not in told and "failed=0" in told
        assert in_words.api.state.pods and in_words.label(STATE) == "pending"


class TestPodsThatLeave:
    def test_one_past_the_scheduler_is_told_before_anybody_leaves(self, in_words: Hosts) -> None:
        """The others were evicted, then mig refused a busy GPU, and the node stayed cordoned."""
        mode = replace(MODE, disruption=Disruption.gpu_reset)
        ours = pod("plugin", gpus=0, owner="DaemonSet")
        ours["metadata"]["labels"] = {"app.kubernetes.io/part-of": "gpuops"}
        ends = pod("ends", gpus=0)
        ends["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        names = ("team/trainer", "team/monitor", "team/plugin", "team/ends", "team/gone", "team/done")
        plan = Plan(host="gpu-1", steps=(mode,), leaving={mode.id: names})
        in_words.api.state.nodes = [node("gpu-1")]
        in_words.api.state.pods = [pod("trainer"), pod("monitor", gpus=0), pod("idle", gpus=0), ours, ends,
                                   pod("done", gpus=0, phase="Succeeded")]
        told = in_words.site({"gpu_plan": planned(plan)})
        assert "1 pod(s) that have GPUs without a resource" in told and "takes them away: team/monitor." in told, told
        assert in_words.writes() == [("POST", "/api/v1/namespaces/team/pods/trainer/eviction")], "asked, in check mode"
        assert len(in_words.api.state.pods) == 6 and in_words.calls("mig") == 0
