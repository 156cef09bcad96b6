# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""site and repair with nodes that others have left out of service, where another run, an admin or the network comes
between, and what the other hosts of the run wait for meanwhile."""
from __future__ import annotations

import threading
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any, Callable, Dict, Iterator, List, Mapping, Sequence

import pytest
from canned import ACTION, Hosts, planned
from cluster_objects import pod
from sites import BROKEN, CHANGE, NOTHING, REFUSED, SICK, SMALL, Site, held, left_by_a_dead_run, names

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.custody import run as custody
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.custody.custody import Custody, Returning, Taking
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.labels import NodePolicy
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Disruption, Plan, Step
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.waiting import wait_for
from ansible_collections.gpuops.nvidia.plugins.module_utils.rollout.budget import (
    DEFAULT_POOL,
    Pool,
    Run,
    Slot,
    as_opened,
    closed,
    ended,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.rollout.change import REPAIR

RUN = custody.Run("a", "other")
GONE = {"unreachable": True, "changed": False, "msg": "no route to host"}
PLUGIN = "nvidia.com/gpu.deploy.device-plugin"
# What a module does before it answers as a test says; the number of its calls for this host is that before this one
AROUND = ACTION + """
import time
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.client import Client, Connection
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.waiting import wait_for


class Around(ActionModule):
    def run(self, tmp=None, task_vars=None):
        there, host = pathlib.Path(task_vars["inventory_dir"]), task_vars["inventory_hostname"]
        calls = there / (host + ".%s")
        number = int(calls.read_text()) if calls.exists() else 0
        client = Client(Connection(kubeconfig=task_vars["gpu_cluster_kubeconfig"]))
        began = time.time()
        %s
        return {**super().run(tmp, task_vars), "began": began}


ActionModule = Around
"""


def of_clique(told: Mapping[str, Any], name: str) -> Dict[str, Any]:
    return {**told, "change": {**told["change"], "clique": name}}


@pytest.fixture
def at_work() -> Iterator[Callable[[Callable[[], Any]], threading.Thread]]:
    """Another controller, beside the run of the test."""
    threads: List[threading.Thread] = []

    def begin(what: Callable[[], Any]) -> threading.Thread:
        threads.append(threading.Thread(target=what))
        threads[-1].start()
        return threads[-1]

    yield begin
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("aim, then", [
    pytest.param("x", "", marks=pytest.mark.variation), (REPAIR, ""),
    ("x", "y"), pytest.param("x", "x", marks=pytest.mark.variation)])
def test_what_failed_while_another_run_was_at_work_keeps_no_node_that_this_one_has_given_back(
    in_words: Hosts, now: datetime, at_work: Any, aim: str, then: str
) -> None:
    """Its checks are made in the middle of a change, and it comes to keep the node for them once that is over.

    then: aim of what comes next in the pool.
    """
    site = Site(in_words, names(2))
    there = in_words.controller.directory
    in_words.put(gpu_validation=AROUND % ("gpu_validation", """
        if host == "gpu-1" and number == 0:
            (there / "checked").write_text("")
        elif host == "gpu-2":
            # The checks of a fleet take long, and what has failed is seen to when they are over
            wait_for((there / "given-back").exists, bool, 60, 0.1)"""))
    other = Custody(site.client, RUN, "gpuops", 600, 0, str)

    def changes() -> None:
        wait_for((there / "gpu-1.gpu_plan").exists, bool, 60, 0.1)
        other.take("gpu-1", Taking("maintenance"))
        wait_for((there / "checked").exists, bool, 60, 0.1)
        other.give_back("gpu-1", Returning(was_taken=True))
        pool = held(Slot("gpu-1", RUN.identity, now, aim=aim), seen=now)
        pool = replace(pool, rollout=replace(pool.rollout, aim=aim))  # type: ignore[type-var]
        site.record(lambda record: closed(ended(
            record.but(DEFAULT_POOL, pool), DEFAULT_POOL, "gpu-1", RUN.identity, "done", "",
            now + timedelta(seconds=60)), DEFAULT_POOL, RUN.identity))
        if then:
            site.record(lambda record: record.but(DEFAULT_POOL, as_opened(
                record.pool(DEFAULT_POOL), then, now, {"c@next": Run("next", now, now, 600)})))
        (there / "given-back").write_text("")

    at_work(changes)
    done = site.run({"gpu-1": {"gpu_plan": SICK, "gpu_validation": BROKEN}, "gpu-2": {"gpu_plan": SICK}})
    assert done.returncode == 2 and "level 1 fails" in done.stdout and site.cordoned() == [], done.stdout
    assert "given back at" in done.stdout and "[cluster.node_changed_since]" in done.stdout, done.stdout


def test_what_is_found_of_a_host_counts_since_it_was_looked_at_itself(
    in_words: Hosts, now: datetime, at_work: Any
) -> None:
    """Of a fleet one is checked after another, and what was given back before that is no excuse."""
    site, there = Site(in_words, names(2)), in_words.controller.directory
    in_words.put(gpu_validation=AROUND % ("gpu_validation", """
        if host == "gpu-1":
            (there / "first").write_text("")
            wait_for((there / "given-back").exists, bool, 60, 0.1)
            # Give backs are told by the second
            wait_for(lambda: False, bool, 5, 1)"""))

    def changes() -> None:
        wait_for((there / "first").exists, bool, 60, 0.1)
        at = datetime.now(timezone.utc).replace(microsecond=0) + timedelta(seconds=1)
        site.record(lambda record: ended(
            record.but(DEFAULT_POOL, held(Slot("gpu-2", RUN.identity, now), seen=now)), DEFAULT_POOL, "gpu-2",
            RUN.identity, "done", "", at))
        (there / "given-back").write_text("")

    at_work(changes)
    done = site.run({"gpu-1": {"gpu_plan": SICK}, "gpu-2": {"gpu_plan": SICK, "gpu_validation": BROKEN}},
                    "--forks", "1", gpu_cordon_unwell={"nodes": 1})
    assert done.returncode == 2 and site.cordoned() == ["gpu-2"], done.stdout


def test_a_run_that_died_before_it_took_the_node_keeps_no_sick_one_in_service(in_words: Hosts) -> None:
    site = Site(in_words, names(1))
    Custody(site.client, RUN, "gpuops", 1, 0, str).hold("gpu-1")
    done = site.run({"gpu_plan": SICK, "gpu_validation": BROKEN}, gpu_startup_taint="example.com/new",
                    gpu_startup_taint_on_failure=True)
    assert done.returncode == 2 and site.cordoned() == ["gpu-1"], done.stdout
    assert in_words.api.state.nodes[0]["spec"]["taints"], done.stdout


@pytest.mark.variation
def test_one_that_another_run_has_is_neither_kept_nor_tainted_for_that(
    in_words: Hosts, now: datetime, at_work: Any
) -> None:
    site = Site(in_words, names(1))
    site.record(lambda record: record.but(DEFAULT_POOL, held(Slot("gpu-1", RUN.identity, now), seen=now)))
    other, over = Custody(site.client, RUN, "gpuops", 600, 0, str), threading.Event()
    other.take("gpu-1", Taking("maintenance"))

    def renews() -> None:
        while not over.wait(1):
            other.renew("gpu-1")

    thread = at_work(renews)
    try:
        done = site.run({"gpu_plan": NOTHING}, gpu_startup_taint="example.com/new", gpu_startup_taint_on_failure=True,
                        node_maintenance_wait_timeout=3)
    finally:
        over.set()
        thread.join()
    assert done.returncode == 2 and "is held by run a@other" in done.stdout, done.stdout
    other.give_back("gpu-1", Returning(was_taken=True))
    [node] = in_words.api.state.nodes
    assert site.cordoned() == [] and not node["spec"].get("taints"), done.stdout


@pytest.mark.variation
def test_who_uncordons_it_during_the_run_means_it(in_words: Hosts) -> None:
    site = Site(in_words, names(2))
    Custody(site.client, RUN, "gpuops", 1, 0, str).take("gpu-1", Taking("maintenance"))
    in_words.put(gpu_driver=AROUND % ("gpu_driver", """
        if client.get("/api/v1/nodes/gpu-1")["spec"].get("unschedulable"):
            client.patch("/api/v1/nodes/gpu-1", {"spec": {"unschedulable": None}})"""))
    done = site.run({"gpu-1": {"gpu_plan": SICK, "gpu_validation": BROKEN}, "gpu-2": {"gpu_plan": CHANGE}})
    assert done.returncode == 2 and "level 1 fails" in done.stdout and site.cordoned() == [], done.stdout
    assert "stays in service" in done.stdout, done.stdout


@pytest.mark.parametrize("first", [
    {"gpu_plan": SICK, "gpu_validation": BROKEN},
    pytest.param({"gpu_plan": SICK, "gpu_validation": GONE}, marks=pytest.mark.variation),
], ids=["it fails again", "it is out of reach"])
def test_nobody_waits_for_the_place_of_one_that_stays_out_for_its_checks(
    in_words: Hosts, first: Dict[str, Any]
) -> None:
    site = Site(in_words, names(2))
    Custody(site.client, RUN, "gpuops", 600, 0, str).give_back("gpu-1", Returning(failures=["level 1 fails"]))
    done = site.run({"gpu-1": first, "gpu-2": {"gpu_plan": CHANGE}}, "--forks", "1", gpu_rollout_timeout=600,
                    gpu_rollout_max_unreachable=1)
    told = " ".join(done.stdout.split())
    assert "a person has to see to gpu-1" in told and site.changed() == [] and site.cordoned() == ["gpu-1"], told


@pytest.mark.variation
def test_nor_for_that_of_one_that_is_lost_while_it_is_opened(in_words: Hosts, now: datetime) -> None:
    site = left_by_a_dead_run(in_words, now - timedelta(hours=1), seconds=1)
    done = site.run({"gpu-1": {"gpu_plan": [CHANGE, NOTHING, SICK], "gpu_validation": GONE},
                     "gpu-2": {"gpu_plan": CHANGE}}, "--forks", "1", gpu_rollout_timeout=600,
                    gpu_rollout_max_unreachable=1)
    told = " ".join(done.stdout.split())
    assert "a person has to see to gpu-1" in told and site.changed() == [], told


@pytest.mark.variation
def test_who_has_given_it_back_meanwhile_has_it_in_service_for_all(
    in_words: Hosts, now: datetime, at_work: Any
) -> None:
    """One that is left to the end, as another run has it, is not lost."""
    site, there = Site(in_words, names(3)), in_words.controller.directory
    site.record(lambda record: record.but(DEFAULT_POOL, held(Slot("gpu-1", RUN.identity, now), seen=now, seconds=20)))
    other = Custody(site.client, RUN, "gpuops", 600, 0, str)
    other.take("gpu-1", Taking("maintenance"))

    def works() -> None:
        wait_for((there / "gpu-2.gpu_plan").exists, bool, 60, 0.1)
        for _ in range(8):
            other.renew("gpu-1")
            threading.Event().wait(1)
        other.give_back("gpu-1", Returning(was_taken=True))
        site.record(lambda record: ended(record, DEFAULT_POOL, "gpu-1", RUN.identity, "done", "", now + timedelta(
            seconds=60)))

    at_work(works)
    done = site.run({"gpu-1": {"gpu_plan": NOTHING}, "gpu-2": {"gpu_plan": CHANGE}, "gpu-3": {"gpu_plan": CHANGE}},
                    gpu_rollout_timeout=90)
    assert done.returncode == 0 and site.changed() == ["gpu-2", "gpu-3"] and site.cordoned() == [], done.stdout


def test_nothing_is_done_that_its_turn_was_not_given_for(in_words: Hosts) -> None:
    """What disturbs nobody waits for no place; by its turn it may have become more."""
    site = Site(in_words, names(1))
    done = site.run({"gpu_plan": [SMALL, CHANGE]})
    told = " ".join(done.stdout.split())
    assert done.returncode == 2 and site.changed() == [] and site.cordoned() == [] and site.held() == {}, told
    assert "steps of class driver_reload" in told and "[playbook.needs_more_now]" in told, told
    assert "Its place among those" not in told, told


@pytest.mark.variation
def test_what_fails_after_another_run_has_given_it_back_keeps_it(
    in_words: Hosts, now: datetime, at_work: Any
) -> None:
    site, there = Site(in_words, names(1)), in_words.controller.directory
    in_words.put(gpu_plan=AROUND % ("gpu_plan", """
        (there / "planning").write_text("")
        wait_for((there / "given-back").exists, bool, 60, 0.1)
        # The API server tells the time in whole seconds
        wait_for(lambda: False, bool, 6, 1)"""))

    def changed() -> None:
        wait_for((there / "planning").exists, bool, 60, 0.1)
        site.record(lambda record: ended(
            record.but(DEFAULT_POOL, held(Slot("gpu-1", RUN.identity, now), seen=now)), DEFAULT_POOL, "gpu-1",
            RUN.identity, "done", "", datetime.now(timezone.utc).replace(microsecond=0)))
        (there / "given-back").write_text("")

    at_work(changed)
    done = site.run({"gpu_plan": SICK, "gpu_validation": BROKEN})
    assert done.returncode == 2 and site.cordoned() == ["gpu-1"], done.stdout


@pytest.mark.parametrize("mate, options", [
    (REFUSED, []), pytest.param(CHANGE, [], marks=pytest.mark.variation),
    pytest.param(CHANGE, ["--limit", "gpu-1"], marks=pytest.mark.variation)],
    ids=["its mate is refused", "larger than the limit", "its mate is no host of the run"])
def test_one_that_needs_nothing_is_opened_whatever_becomes_of_its_clique(
    in_words: Hosts, now: datetime, mate: Dict[str, Any], options: Sequence[str]
) -> None:
    site = Site(in_words, names(2))
    for node in in_words.api.state.nodes:
        node["metadata"]["labels"]["nvidia.com/gpu.clique"] = "c.1"
    site.record(lambda record: record.but(DEFAULT_POOL, Pool(limit="1", slots={
        "gpu-1": Slot("gpu-1", RUN.identity, now - timedelta(hours=1))})))
    Custody(site.client, RUN, "gpuops", 1, 0, str).take("gpu-1", Taking("maintenance"))
    done = site.run({"gpu-1": {"gpu_plan": of_clique(NOTHING, "c.1")}, "gpu-2": {"gpu_plan": of_clique(mate, "c.1")}},
                    *options)
    assert "gpu-1" not in site.cordoned() and site.held().get("gpu-1") is None, done.stdout
    assert "gpu-1" not in site.changed(), done.stdout


@pytest.mark.variation
def test_and_keeps_no_place_of_the_run_that_opens_it(in_words: Hosts, now: datetime) -> None:
    site = Site(in_words, names(4))
    site.record(lambda record: record.but(DEFAULT_POOL, Pool(limit="2", slots={
        "gpu-1": Slot("gpu-1", RUN.identity, now - timedelta(hours=1))})))
    Custody(site.client, RUN, "gpuops", 1, 0, str).take("gpu-1", Taking("maintenance"))
    done = site.run({name: {"gpu_plan": of_clique(NOTHING if name == "gpu-1" else CHANGE, clique)}
                     for name, clique in zip(names(4), ("c.1", "c.1", "c.2", "c.2"))},
                    gpu_rollout_limit=2, gpu_rollout_timeout=60, gpu_rollout_canaries="none")
    assert done.returncode == 0 and site.changed() == names(4)[1:] and site.held() == {}, done.stdout


@pytest.mark.variation
def test_a_repair_opens_nothing_that_it_does_not_know_to_be_of_one_at_its_turn_either(
    in_words: Hosts, now: datetime
) -> None:
    site = Site(in_words, names(1))
    Custody(site.client, RUN, "gpuops", 1, 0, str).take("gpu-1", Taking("driver"))
    sick = planned(Plan(steps=(Step("repair", "gpu.reset", "0", "Reset.", Disruption.gpu_reset),)))
    sick = {**sick, "change": {**sick["change"], "policy": "repair=a"}}
    done = site.run({"gpu_plan": [sick, NOTHING], "gpu_health": {"changed": False, "findings": []}}, playbook="repair",
                    gpu_rollout_timeout=10)
    assert site.cordoned() == ["gpu-1"], done.stdout


@pytest.mark.variation
def test_little_that_is_left_to_do_takes_no_component_off_a_node_whose_pods_run_on(
    in_words: Hosts, now: datetime
) -> None:
    site, admitting = Site(in_words, names(1)), NodePolicy(labels={PLUGIN: "true"})
    Custody(site.client, RUN, "gpuops", 1, 0, str).give_back("gpu-1", Returning(admitting))
    site.record(lambda record: record.but(DEFAULT_POOL, held(
        Slot("gpu-1", RUN.identity, now - timedelta(hours=1), begun=True), seen=now - timedelta(hours=1), seconds=1)))
    Custody(site.client, RUN, "gpuops", 1, 0, str).take("gpu-1", Taking("driver"))
    in_words.api.state.pods.append(pod("train-0", node_name="gpu-1"))
    in_words.api.state.requests.clear()
    done = site.run({"gpu_plan": SMALL}, gpu_rollout_timeout=30)
    assert done.returncode == 0 and site.cordoned() == [] and site.held() == {}, done.stdout
    written = [((request.body or {}).get("metadata") or {}).get("labels") or {}
               for request in in_words.api.state.requests if request.method == "PATCH"]
    assert [pod["metadata"]["name"] for pod in in_words.api.state.pods] == ["train-0"]
    assert not [labels for labels in written if labels.get(PLUGIN, "") is None], written


@pytest.mark.variation
def test_no_rollout_stays_open_where_all_hosts_fail_their_checks(in_words: Hosts) -> None:
    site = Site(in_words, names(2))
    done = site.run({"gpu_plan": [CHANGE, SICK], "gpu_validation": BROKEN}, gpu_rollout_timeout=30)
    assert done.returncode == 2 and site.record().rollout is None, done.stdout
