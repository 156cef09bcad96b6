# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Who owns spec.unschedulable, as the API server's book of fields says it, whatever the order of what happened."""
from __future__ import annotations

from typing import Any, Iterator, List

import pytest
from cluster_api import Api
from cluster_objects import node
from custody_bed import NAMESPACE, NODE, Bed, Drained
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from object_store import Store

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.client import Client, Connection
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.custody import claims
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.custody.run import Run
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError

# What an admin and other programs may do at any moment, and what our runs do; a run may die between any two
ACTS = ("cordon", "uncordon", "free", "others apply", "others withdraw", "hold", "no hold", "take a", "take b",
        "renew a", "back a", "back b", "fail a", "fail b")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    made = Api(tmp_path_factory.mktemp("server"))
    yield made
    made.close()


def fresh(server: Api) -> Bed:
    server.state.store = Store(more={"Node": ("v1", "nodes", False)})
    server.state.store.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    server.state.store.put(node(NODE), "kubelet")
    server.state.requests.clear()
    return Bed(Client(Connection(kubeconfig=str(server.kubeconfig)), sleep=lambda seconds: None))


def do(bed: Bed, act: str) -> None:
    verb, _space, who = act.partition(" ")
    try:
        if act in ("cordon", "uncordon"):
            getattr(bed, act)()
        elif act == "free":
            bed.free()
        elif verb == "others":
            bed.applied_cordon("another", who == "apply")
        elif act in ("hold", "no hold"):
            bed.write("kubectl-annotate", annotations={claims.HOLD: "mine" if act == "hold" else None})
        elif verb == "take":
            bed.take(who, Drained())
        elif verb == "renew":
            bed.custody(who).renew(NODE)
        else:
            bed.give_back(who, *(["xid"] if verb == "fail" else []))
    except GpuOpsError:
        pass


def wants_it_cordoned(acts: List[str]) -> bool:
    """Whether somebody beside us does, by what happened: an admin who cordoned an open node or left a hold mark on a
    cordoned one, or another program; and nobody has uncordoned since."""
    cordoned_by_admin = others = False
    for act in acts:
        if act in ("uncordon", "free"):
            cordoned_by_admin = others = False
        elif act == "others apply":
            others = True
        elif act == "others withdraw":
            others = False
    return cordoned_by_admin or others


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(acts=st.lists(st.sampled_from(ACTS), max_size=9))
def test_no_cordon_of_others_is_lifted_and_none_of_ours_is_left(server: Api, acts: List[str]) -> None:
    bed = fresh(server)
    for act in acts:
        others_before = set(claims.cordoned_by_others(bed.node()))
        do(bed, act)
        if act.split(" ")[0] in ("take", "renew", "back", "fail"):
            assert others_before <= set(claims.cordoned_by_others(bed.node())), "nobody else's cordon is lifted"
    held, others = claims.is_held(bed.node()), claims.cordoned_by_others(bed.node())
    bed.give_back("last")
    there = bed.node()
    assert claims.claims(there) == {} and bed.lease() is None
    assert bed.is_open() == (not others and not held)
    if wants_it_cordoned(acts):
        assert not bed.is_open()


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(acts=st.lists(st.sampled_from(ACTS), max_size=9))
def test_a_node_that_was_uncordoned_on_purpose_is_not_cordoned_again_by_the_same_run(
    server: Api, acts: List[str]
) -> None:
    bed = fresh(server)
    bed.take("a")
    for act in acts:
        do(bed, act)
    if Run("a", "ctrl-1").manager not in claims.claims(bed.node()):
        return
    bed.uncordon()
    for act in ("take a", "renew a", "fail a", "back a"):
        do(bed, act)
        assert bed.is_open(), act


def owners(*entries: Any) -> Any:
    there = node(unschedulable=True)
    there["metadata"]["managedFields"] = [
        {"manager": manager, "operation": operation, "fieldsV1": {"f:spec": {"f:unschedulable": {}}}}
        for manager, operation in entries]
    return there


@pytest.mark.parametrize("entries, expected", [
    ([("gpuops-custody-a", "Apply")], ()),
    ([("gpuops-custody-a", "Apply"), ("kubectl-cordon", "Update")], ("kubectl-cordon",)),
    ([("before-first-apply", "Update"), ("gpuops-custody-a", "Apply")], ("before-first-apply",)),
    ([], (claims.UNKNOWN,)), ([("gpuops-hold", "Apply")], ())])
def test_what_is_not_known_to_be_ours_is_not_ours(entries: Any, expected: Any) -> None:
    assert claims.cordoned_by_others(owners(*entries)) == expected
    assert claims.cordoned_by_others(node()) == ()


def test_an_update_under_our_name_is_no_claim() -> None:
    assert claims.claims(owners(("gpuops-custody-a", "Update"))) == {}
