# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Many sick nodes at once have one cause, and are not repaired one by one; a few are, whatever the share."""
from __future__ import annotations

import json
from typing import Any, Dict, List, Optional

import pytest
from ansible.errors import AnsibleError, AnsibleFilterError
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpuops.nvidia.plugins.filter.are_many import are_many
from ansible_collections.gpuops.nvidia.plugins.filter.many_are_sick import many_are_sick
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.refusal import Refusal
from ansible_collections.gpuops.nvidia.plugins.module_utils.repair.breaker import Limits, limits_of, stopped


def sick(*codes: str) -> Dict[str, List[str]]:
    """{node: its code}, a node for each; codes that have a comma are of one node."""
    return {"gpu-%d" % number: code.split(",") for number, code in enumerate(codes, 1)}


def why(nodes: Dict[str, List[str]], count: int) -> str:
    found = stopped(nodes, count, Limits())
    return "" if found is None else found.found


@pytest.mark.parametrize("codes, count, tells", [
    ([], 100, ""),
    (["xid 79"], 1, ""),
    (["xid 79", "xid 79"], 2, ""),
    (["xid 79"] * 3, 30, ""),
    (["xid 79"] * 3, 29, "3 of 29 nodes are sick of the same at once, xid 79: gpu-1, gpu-2, gpu-3"),
    (["xid 79", "xid 95", "hang"], 15, ""),
    (["xid 79", "xid 95", "hang"], 14, "3 of 14 nodes are sick at once: hang (gpu-3); xid 79 (gpu-1); xid 95 (gpu-2)"),
    (["xid 79,hang", "xid 95,hang", "hang"], 29,
     "3 of 29 nodes are sick of the same at once, hang: gpu-1, gpu-2, gpu-3"),
    (["xid 79,xid 79", "xid 79", "hang"], 29, ""),
])
def test_what_stops_a_repair(codes: List[str], count: int, tells: str) -> None:
    assert why(sick(*codes), count) == tells


def test_many_nodes_are_counted_and_not_all_named() -> None:
    told = why(sick(*["hang"] * 40), 50)
    assert told.endswith("gpu-17, gpu-18 and 30 more") and told.count("gpu-") == 10


@pytest.mark.parametrize("count, limits, named", [
    (50, Limits(), {"percent": 100, "percent_alike": 100}),
    (150, Limits(percent=30), {"percent": 30, "percent_alike": 100}),
    (50, Limits(percent_alike=100), {"percent": 100, "percent_alike": 100})])
def test_the_refusal_names_the_limits_that_let_it_pass(count: int, limits: Limits, named: Dict[str, int]) -> None:
    """All of them at once: what is given by -e takes the place of what was given before."""
    nodes = sick(*["hang"] * 40)
    found = stopped(nodes, count, limits)
    assert found is not None and json.dumps({"gpu_repair_breaker": named}) in found.remedy
    assert stopped(nodes, count, limits_of(named)) is None and stopped(nodes, count, None) is None


@given(st.integers(1, 60), st.integers(0, 60), st.integers(0, 5), st.integers(0, 100), st.integers(0, 100))
def test_one_sick_node_more_never_lets_a_repair_pass(
    count: int, number: int, nodes: int, percent: int, alike: int
) -> None:
    limits = Limits(nodes, percent, alike)
    some = sick(*["hang"] * min(number, count))
    more = sick(*["hang"] * min(number + 1, count))
    assert not stopped(some, count, limits) or stopped(more, count, limits)
    assert not isinstance(stopped(some, count, limits), Refusal) or len(some) > nodes


@pytest.mark.parametrize("given, limits", [
    ({}, Limits()), ({"nodes": 5}, Limits(nodes=5)), (False, None), ("false", None), ("no", None),
    ({"percent": 0}, Limits(percent=0)),
])
def test_limits_are_read(given: Any, limits: Optional[Limits]) -> None:
    assert limits_of(given) == limits


@pytest.mark.parametrize("given", [
    {"percentage": 5}, {"nodes": "many"}, {"nodes": -1}, {"nodes": True}, 30, "30%", None])
def test_what_is_no_limit_is_refused(given: Any) -> None:
    with pytest.raises(GpuOpsError) as raised:
        limits_of(given)
    assert raised.value.code == "repair.breaker_malformed"


@pytest.mark.parametrize("failed, hosts, limits, expected", [
    (2, 2, {}, False), (3, 15, {}, False), (3, 14, {}, True), (3, 14, True, True), (3, 14, "yes", True),
    (1, 4, {"nodes": 0}, True), (3, 14, {"percent": "30"}, False), (3, 3, {"percent": 100}, False)])
def test_hosts_that_have_failed_are_many_by_the_same_limits(
    failed: int, hosts: int, limits: Any, expected: bool
) -> None:
    names = ["gpu-%d" % number for number in range(hosts)]
    assert are_many(names[:failed], names, limits) is expected


class TestTheFilter:
    """Hosts are counted cluster by cluster."""

    @staticmethod
    def hostvars(gpus: int = 8, **codes: str) -> Dict[str, Dict[str, Any]]:
        """codes: {host: cluster, and what it is sick of}."""
        found: Dict[str, Dict[str, Any]] = {}
        for name, told in codes.items():
            cluster, _space, code = told.partition(" ")
            found[name] = {"gpu_cluster_kubeconfig": cluster, "gpu_looked": {"gpus": gpus, "findings": [
                {"code": code, "kind": "sick", "remedy": "reset", "mended": ""},
                {"code": "xid 63", "kind": "pending", "remedy": "reset", "mended": ""}] if code else []}}
        return found

    def refused(self, limits: Any, **codes: str) -> Dict[str, str]:
        hostvars = self.hostvars(**codes)
        return many_are_sick(list(hostvars), hostvars, limits)

    def test_hosts_without_a_gpu_do_not_count(self) -> None:
        sick = self.hostvars(a1="a hang", a2="a hang", a3="a hang")
        plain = {"cpu-%d" % number: host for number in range(100) for host in self.hostvars(0, cpu="a").values()}
        assert set(many_are_sick([*sick, *plain], {**sick, **plain})) == set(sick)

    @pytest.mark.parametrize("change", [{"mended": "a reset"}, {"remedy": "out"}])
    def test_what_no_repair_is_for_does_not_count(self, change: Dict[str, str]) -> None:
        hostvars = self.hostvars(a1="a hang", a2="a hang", a3="a hang")
        for each in hostvars.values():
            each["gpu_looked"]["findings"][0].update(change)
        assert many_are_sick(list(hostvars), hostvars) == {}

    def test_each_cluster_has_its_own_limits(self) -> None:
        hostvars = self.hostvars(**{"%s%d" % (name, number): "%s hang" % name for name in "ab" for number in range(4)})
        for name, each in hostvars.items():
            each.update({"gpu_repair_breaker": False} if name.startswith("a") else {})
        assert {name[0] for name in many_are_sick(list(hostvars), hostvars, variable="gpu_repair_breaker")} == {"b"}
        hostvars["a1"]["gpu_repair_breaker"] = {"nodes": 9}
        found = many_are_sick(list(hostvars), hostvars, variable="gpu_repair_breaker")
        assert "[repair.breakers_differ]" in found["a2"] and "[repair.many_are_sick]" in found["b2"]

    def test_a_variable_that_cannot_be_worked_out_is_its_hosts_alone(self) -> None:
        class Broken(Dict[str, Any]):
            def get(self, *_words: Any) -> Any:
                raise AnsibleError("no such file")

        hostvars: Dict[str, Any] = {**self.hostvars(a1="a hang"), "b4": Broken()}
        found = many_are_sick(list(hostvars), hostvars, variable="gpu_repair_breaker")
        assert set(found) == {"b4"} and "[repair.variables_not_worked_out]" in found["b4"]

    def test_one_cluster_stops_and_the_other_goes_on(self) -> None:
        found = self.refused({}, a1="a hang", a2="a hang", a3="a hang", b1="b hang", b2="b", c1="")
        assert set(found) == {"a1", "a2", "a3"} and "[repair.many_are_sick]" in found["a1"]

    def test_what_is_pending_makes_nobody_sick(self) -> None:
        assert self.refused({"nodes": 0}, a1="a", a2="a") == {}

    def test_what_is_no_limit_ends_the_task(self) -> None:
        with pytest.raises(AnsibleFilterError, match="breaker_malformed"):
            self.refused("many", a1="a")
