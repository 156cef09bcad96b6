# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What site makes of a plan for MIG: who leaves the node, what is put off, and what the Node says of its layout."""
from __future__ import annotations

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
