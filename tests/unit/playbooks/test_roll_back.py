# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What site does where a new driver fails on a host: which failures lead back, and what is told of both ways."""
from __future__ import annotations

from typing import Any, Dict, Mapping

import pytest
from canned import WAY, Hosts, planned
from cluster_objects import node

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Disruption, Plan, Step

PACKAGES = Step("driver", "packages.install", "driver 595.91.07", "Driver 595.", Disruption.driver_reload)
FINE = {"changed": True, "reboot_required": False, "applied": ["driver/packages.install/driver 580.178.04"]}


# As where another run on this host, which may have exchanged the driver meanwhile, does not end in time
REFUSED = {"failed": True, "msg": "it fails", "changed": False,
           "refusals": [{"code": "host.another_run", "found": "another run", "wanted": "one", "remedy": "wait"}]}


def failed(what: str) -> Dict[str, Any]:
    return {"failed": True, "msg": what, "changed": True}


def site(in_words: Hosts, canned: Mapping[str, Any], way: Mapping[str, str] = WAY, **variables: Any) -> str:
    """Of a host that takes one driver for another."""
    in_words.api.state.nodes = [node("gpu-1")]
    plan = Plan(host="gpu-1", steps=(PACKAGES,), returns_to={PACKAGES.id: way})
    return in_words.site({"gpu_plan": planned(plan), **canned}, **variables)


def reason(in_words: Hosts) -> str:
    (there,) = in_words.api.state.nodes
    assert there["spec"]["unschedulable"] is True
    return " ".join(there["metadata"]["annotations"].values())


# The first two calls of gpu_driver stage: among all hosts, and again right before the node is cordoned; the next one
# exchanges, and the one after it returns
@pytest.mark.parametrize("canned", [
    {"gpu_driver": [FINE, FINE, failed("it does not build"), FINE]},
    pytest.param({"gpu_driver": FINE, "gpu_driver_activation": [failed("it does not build"), FINE]},
                 marks=pytest.mark.variation),
    {"gpu_driver": FINE, "gpu_validation": [failed("it does not build"), FINE]},
], ids=["installed", "loaded", "validated"])
def test_a_driver_that_fails_gives_way_to_the_one_before(in_words: Hosts, canned: Dict[str, Any]) -> None:
    told = site(in_words, canned)
    assert in_words.calls("gpu_driver") == 4 and "failed=1" in told, told
    assert in_words.calls("cdi_spec") >= 1
    both = "it does not build. Rolled back to driver 580.178.04"
    assert both + " by a plan of its own: driver/packages.install" in reason(in_words)
    assert told.count(both) >= 1, told


@pytest.mark.variation
def test_where_the_way_back_fails_both_errors_are_told(in_words: Hosts) -> None:
    told = site(in_words, {"gpu_driver": [FINE, FINE, failed("it does not build"), failed("apt is gone")]})
    both = "it does not build. The way back to driver 580.178.04 failed, too: apt is gone"
    assert both in reason(in_words) and both in told


@pytest.mark.parametrize("way, canned, variables", [
    pytest.param({**WAY, "how": "none", "why": "nobody has it"}, {"gpu_driver": [FINE, FINE, failed("it fails"), FINE]},
                 {}, marks=pytest.mark.variation),
    pytest.param(WAY, {"gpu_driver": [FINE, FINE, failed("it fails"), FINE]}, {"gpu_roll_back": False},
                 marks=pytest.mark.variation),
    (WAY, {"gpu_driver": FINE, "container_runtime": failed("it fails")}, {}),
    pytest.param(WAY, {"gpu_driver": [FINE, FINE, REFUSED, FINE]}, {}, marks=pytest.mark.variation),
], ids=["no way back", "not wanted", "not the driver's failure", "refused before anything changed"])
def test_else_the_host_stays_as_the_failure_left_it(
    in_words: Hosts, way: Mapping[str, str], canned: Dict[str, Any], variables: Dict[str, Any]
) -> None:
    told = site(in_words, canned, way, **variables)
    assert in_words.calls("gpu_driver") == 3 and "failed=1" in told, told
    assert "it fails" in reason(in_words) and "olled back" not in reason(in_words)


@pytest.mark.variation
def test_a_plan_without_an_exchange_leads_nowhere_back(in_words: Hosts) -> None:
    in_words.api.state.nodes = [node("gpu-1")]
    told = in_words.site({"gpu_plan": planned(Plan(host="gpu-1", steps=(PACKAGES,))),
                          "gpu_driver": [FINE, FINE, failed("it fails"), FINE]})
    assert in_words.calls("gpu_driver") == 3 and "it fails" in reason(in_words), told


@pytest.mark.variation
def test_a_driver_that_cannot_be_prepared_leaves_its_node_in_service_and_the_others_to_theirs(in_words: Hosts) -> None:
    in_words.api.state.nodes = [node("gpu-1"), node("gpu-2")]
    plan = planned(Plan(host="gpu-1", steps=(PACKAGES,)))
    told = in_words.site({"gpu-1": {"gpu_plan": plan, "gpu_driver": failed("it does not build")},
                          "gpu-2": {"gpu_plan": plan}}, hosts=("gpu-1", "gpu-2"))
    assert "failed=1" in told and "it does not build" in told
    assert [in_words.calls("gpu_driver", host) for host in ("gpu-1", "gpu-2")] == [1, 3], told
    changed = {path for _method, path in in_words.writes() if path.startswith("/api/v1/nodes/")}
    assert changed == {"/api/v1/nodes/gpu-2"}, told


def test_where_no_driver_can_be_prepared_those_that_need_none_are_given_back_all_the_same(in_words: Hosts) -> None:
    ours = {"gpuops.nvidia.com/cordoned-by": "gpuops"}
    in_words.api.state.nodes = [node("gpu-1"), node("gpu-2", unschedulable=True, annotations=ours)]
    told = in_words.site({
        "gpu-1": {"gpu_plan": planned(Plan(host="gpu-1", steps=(PACKAGES,))), "gpu_driver": failed("404 Not Found")},
        "gpu-2": {"gpu_plan": planned(Plan(), proof={})}}, hosts=("gpu-1", "gpu-2"))
    assert "404 Not Found" in told and in_words.calls("gpu_driver", "gpu-1") == 1, told
    assert not in_words.api.state.nodes[1]["spec"].get("unschedulable"), told
