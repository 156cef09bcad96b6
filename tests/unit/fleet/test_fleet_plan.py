# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The plan of a fleet: every host is in one part of it, and it is read in a page of text, or as a page of its own."""
from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, ClassVar, Dict, List, Set

import pytest
from hypothesis import given
from hypothesis import strategies as st
from many_plans import BUSY, NO_VERSION, REBOOTING, UPGRADE, Noted, numbered, of_500

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Disruption, Kept, Plan, Step, digest
from ansible_collections.gpuops.nvidia.plugins.module_utils.fleet.approval import CLUSTERS, HOSTS, index_of, require
from ansible_collections.gpuops.nvidia.plugins.module_utils.fleet.model import (
    ClusterNote,
    Fleet,
    Note,
    Standing,
    fleet_of,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.fleet.page import as_html, markdown
from ansible_collections.gpuops.nvidia.plugins.module_utils.fleet.text import MOST_LINES, text
from ansible_collections.gpuops.nvidia.plugins.plugin_utils.plan_files import (
    approved_plan,
    approved_plan_of_cluster,
    plan_path,
    save,
    save_fleet,
)

CLUSTER = ClusterNote("production", "uid-1", "0123", Plan(host="production", steps=(
    Step("device_plugin", "object.change", "DaemonSet gpu/device-plugin", "Its image is another.", change={
        "before": {"image": "a"}, "after": {"image": "b"}}),)))
PLANS = [Plan(), Plan(notes=("Its BIOS is old.",)), Plan(complete=False, waiting=("mig",)), UPGRADE, REBOOTING,
         replace(UPGRADE, kept=(Kept("dkms", "others need it"),)), Plan(refusals=(NO_VERSION,)),
         Plan(refusals=(NO_VERSION, BUSY)), Plan(refusals=(replace(BUSY, found="process 1"),))]


@st.composite
def noted(draw: Any) -> Noted:
    found = Noted()
    for host in draw(st.sets(st.from_regex(r"[a-c][0-9]{0,2}", fullmatch=True), max_size=25)):
        standing = draw(st.sampled_from(Standing))
        if standing in (Standing.planned, Standing.refused):
            found.add(host, draw(st.sampled_from(PLANS)), pods=tuple(draw(st.lists(st.just("a/b"), max_size=1))),
                      seconds=draw(st.none() | st.integers(0, 9999)))
        else:
            found.without(host, standing, refusals=(BUSY,), why=draw(st.sampled_from(["no route", "a: x", ""])))
    return found


@given(noted(), st.sets(st.sampled_from(["x1", "x2", "a1"])))
def test_every_host_is_in_one_part(found: Noted, others: Set[str]) -> None:
    fleet = found.fleet(*others)
    hosts = [host for part in fleet.parts.values() for host in part]
    assert sorted(hosts) == sorted({*found.hosts, *others})
    groups = [host for each in (fleet.idle, fleet.changing, fleet.refused, fleet.failed, fleet.unreachable)
              for group in each for host in group.hosts]
    assert len(groups) + len(fleet.left_out) + len(fleet.unshown) + len(fleet.unasked) == len(hosts)


@given(noted(), st.randoms(use_true_random=False))
def test_the_order_of_hosts_says_nothing(found: Noted, order: random.Random) -> None:
    fleet = found.fleet(clusters=[CLUSTER, replace(CLUSTER, name="b", uid="uid-2")])
    order.shuffle(found.notes)
    again = found.fleet(clusters=[replace(CLUSTER, name="b", uid="uid-2"), CLUSTER])
    assert again == fleet and text(again) == text(fleet)


@given(noted(), st.integers(MOST_LINES, 2 * MOST_LINES))
def test_a_page_of_text_counts_every_host(found: Noted, most: int) -> None:
    """By name or by number, each in one line that begins with them."""
    told = text(found.fleet(), most)
    assert told.count("\n") < most
    counted = [int(match) for match in re.findall(r"^(?:and )?(\d+) hosts?(?: with|,.* for|: )", told, re.MULTILINE)]
    named = re.findall(r"^[abc]\d{0,2}: ", told, re.MULTILINE)
    assert sum(counted) + len(named) == len(found.hosts)


def test_plans_that_are_all_different_fit_a_page_of_text() -> None:
    found = Noted()
    for number, host in enumerate(numbered(1, 300)):
        steps = tuple(Step("a", "file.write", "/etc/%d/%d" % (number, each), "why\nnot " * 40) for each in range(30))
        found.add(host, Plan(steps=steps, notes=tuple("note %d %d" % (number, each) for each in range(9))), seconds=1)
    for number, host in enumerate(numbered(301, 400)):
        found.add(host, Plan(refusals=(replace(BUSY, code="mig.%d" % number), NO_VERSION)))
    for number, host in enumerate(numbered(401, 450)):
        found.without(host, Standing.unreachable, why="a line\nof %s" % ("x" * number))
    for number, host in enumerate(numbered(451, 500)):
        found.without(host, Standing.failed, refusals=(replace(BUSY, code="a.%d" % number),))
    clusters = [replace(CLUSTER, name="cluster-%d" % each, uid=str(each)) for each in range(20)]
    rollouts = [{"name": "cluster-%d" % each, "head": ["stopped: x"] * 3 + ["waits: y", "at once: 1", "places: z"],
                 "rollout": {"units": [{"hosts": [host], "why": "because of %s" % host, "seconds": 60}
                                       for host in numbered(1, 300)[each::20]]}} for each in range(20)]
    told = text(found.fleet(clusters=clusters, rollouts=rollouts), MOST_LINES, "See plans/fleet.md.", "Digest: 1")
    assert told.count("\n") < MOST_LINES and told.splitlines()[-2:] == ["Shortened. See plans/fleet.md.", "Digest: 1"]
    assert max(map(len, told.splitlines())) <= 400
    assert told.count("  stopped: x") == 6 and "\nand 270 hosts in 18 other clusters, 18 of them stopped\n" in told
    whole = text(found.fleet(clusters=clusters, rollouts=rollouts))
    assert "/etc/299/29" in whole and whole.count("\n") > 300 * 60


def test_500_hosts_of_several_kinds_are_read_in_a_page() -> None:
    found = of_500()
    turns = [{"hosts": ["gpu-413"], "why": "a canary of its kind", "seconds": 700, "jobs": ["train"]},
             *({"hosts": [host], "why": "in order", "seconds": 600, "jobs": ["infer", host]}
               for host in numbered(414, 487))]
    told = text(found.fleet(clusters=[CLUSTER], turns=turns), MOST_LINES, "See plans/fleet.md.")
    assert told == """\
500 hosts, 1 cluster
412 hosts: nothing to do: gpu-[001-412]
  note: Its BIOS is old. (gpu-[001-039])
68 hosts: 3 steps, disruption driver_reload: gpu-[413-480]
  expected to take 10 min 0 s to 10 min 59 s a host
  pods that leave before: 68
  1. [none] packages.download driver 595.91.07
     It is fetched beside running work.
       nvidia-open: absent -> 595.91.07-1
  2. [driver_reload] packages.install driver 595.91.07
     580.178.04 is installed.
       nvidia-open: 580.178.04-1 -> 595.91.07-1
  3. [runtime_restart] file.write /etc/containerd/conf.d/nvidia.toml
     The handler is not there.
       +[plugins]
       +imports = []
7 hosts: 3 steps and a reboot, disruption reboot: gpu-[481-487]
  put off, as more is disturbed than is allowed: 1
  1. [none] packages.download driver 595.91.07
     It is fetched beside running work.
       nvidia-open: absent -> 595.91.07-1
  2. [driver_reload] packages.install driver 595.91.07
     580.178.04 is installed.
       nvidia-open: 580.178.04-1 -> 595.91.07-1
  3. [runtime_restart] file.write /etc/containerd/conf.d/nvidia.toml
     The handler is not there.
       +[plugins]
       +imports = []
  then: [reboot] a reboot for kernel 6.1.0-56
     It is not running.
5 hosts: refused: gpu-[488-492]
  found no driver 595.91.07 in the repository; wanted driver 595.91.07; do: set `gpu_driver_version` to one of those \
offered [driver.version_not_offered]
3 hosts: refused: gpu-[493-495]
  found GPU 0000:17:00.0 is used by process 493; wanted a GPU that nobody uses; do: end it [mig.gpu_in_use]
  in other words on 2 hosts
gpu-500: no plan could be made
  found GPU 0000:17:00.0 is used by process 4711; wanted a GPU that nobody uses; do: end it [mig.gpu_in_use]
3 hosts: unreachable: gpu-[496-498]
  ssh: connect to host gpu-496 port 22: No route
gpu-499: no GPU for NVIDIA's driver, left out
In this order:
  1. gpu-413: a canary of its kind; expected to take 11 min 40 s; 1 job hit
  2. 74 hosts: in order; 74 turns; expected to take 10 min 0 s each; 75 jobs hit: gpu-[414-487]
cluster production: 1 step, disruption none
  1. [none] object.change DaemonSet gpu/device-plugin
     Its image is another.
       image: a -> b
Shortened. See plans/fleet.md."""
    whole = text(found.fleet(clusters=[CLUSTER], turns=turns))
    assert "pods that leave before: team/job-gpu-413, team/job-gpu-414" in whole and "1 job hit: train" in whole
    assert "Shortened" not in whole


def test_what_is_told_whole_is_not_called_shortened() -> None:
    found = Noted()
    for host in numbered(1, 200):
        found.add(host, Plan())
    assert text(found.fleet(), MOST_LINES, "See it.", "Digest: 1") == (
        "200 hosts\n200 hosts: nothing to do: gpu-[001-200]\nDigest: 1")


def test_of_more_than_a_page_the_steps_are_told_and_their_reasons_counted() -> None:
    found = of_500()
    for number, host in enumerate(numbered(501, 510)):
        found.add(host, replace(UPGRADE, notes=("kind %d" % number,)), pods=("a/b",))
    told = text(found.fleet(clusters=[replace(CLUSTER, name="another", uid="uid-2"), CLUSTER], turns=[
        {"hosts": [host], "why": "because of %s" % host} for host in numbered(413, 420)]),
        MOST_LINES, "See plans/fleet.md.").splitlines()
    assert "68 hosts: 3 steps, disruption driver_reload: gpu-[413-480]" in told
    assert "  expected to take 10 min 0 s to 10 min 59 s a host; pods that leave before: 68" in told
    assert "  2. [driver_reload] packages.install driver 595.91.07" in told
    assert not any("580.178.04" in line for line in told) and len(told) <= MOST_LINES


def test_devices_that_differ_are_explained() -> None:
    uuid = "GPU-00000007-0000-0000-0000-00000000000%d"
    found = Noted()
    for number in (1, 2):
        found.add("gpu-%d" % number, Plan(notes=("%s is hot." % (uuid % number),)))
    told = text(found.fleet())
    assert "2 hosts: nothing to do: gpu-[1-2]\n  note: GPU-#1 is hot.\nGPU-#1, MIG-#1" in told


def test_one_host_reads_as_its_own_plan_does() -> None:
    assert text(Noted().add("gpu-1", Plan(complete=False, notes=("It waits.",))).fleet()) == (
        "gpu-1: nothing to do yet\n  note: It waits.")


def test_turns_of_the_same_reason_are_one_line_and_hosts_of_others_none() -> None:
    found = Noted().add("a1", UPGRADE).add("a2", UPGRADE).add("a3", UPGRADE)
    turns = [{"hosts": ["a2"], "why": "canary"}, {"hosts": ["elsewhere"], "why": "canary"},
             {"hosts": ["a3"], "why": "in order", "seconds": 5, "jobs": ["x"]},
             {"hosts": ["a1"], "why": "in order", "seconds": 7, "jobs": ["x", "y"], "place": "in_order"}]
    assert [(turn.hosts, turn.units, turn.seconds, turn.jobs) for turn in found.fleet(turns=turns).orders[0].turns] == [
        (("a2",), 1, None, ()), (("a1", "a3"), 2, 7, ("x", "y"))]


class TestOrders:
    """How the rollout of a cluster stands, and in which order its hosts are changed."""

    UNITS: ClassVar[List[Dict[str, Any]]] = [{"hosts": [host], "why": "in order"} for host in ("a1", "a2", "b1")]
    HEAD: ClassVar[List[str]] = ["stopped: 1 failed: a9; do: free it [rollout.too_many_failures]",
                                 "waits: host a1: no window is open", "at once: 2 in all", "places: 0 of 2 free"]

    def fleet(self, *rollouts: Dict[str, Any]) -> Fleet:
        return Noted().add("a1", UPGRADE).add("a2", UPGRADE).add("b1", UPGRADE).fleet(rollouts=rollouts)

    def test_how_it_stands_is_in_all_that_people_read(self) -> None:
        fleet = self.fleet({"name": "production", "head": self.HEAD, "rollout": {"units": self.UNITS}})
        assert text(fleet).splitlines()[-6:] == [
            "In this order:", *("  " + line for line in self.HEAD), "  1. 3 hosts: in order; 3 turns: a[1-2], b1"]
        for page in (markdown(fleet), as_html(fleet)):
            assert all(line in page.replace("\\", "") for line in self.HEAD), page
        assert fleet.to_dict()["orders"][0]["head"] == self.HEAD

    def test_it_is_no_part_of_what_is_approved(self) -> None:
        units = {"rollout": {"units": self.UNITS}}
        assert self.fleet(units).digest == self.fleet({**units, "head": self.HEAD}).digest == self.fleet().digest

    def test_each_cluster_has_a_list_of_its_own(self) -> None:
        fleet = self.fleet(
            {"name": "east", "head": ["at once: 1 in all"], "rollout": {"units": self.UNITS[:1]}},
            {"name": "west", "head": [], "rollout": {"units": self.UNITS[1:2]}},
            {"name": "idle", "head": [], "rollout": {"units": []}},
            {"name": "", "head": [], "rollout": {"units": self.UNITS[2:]}})
        assert text(fleet).partition("In this order")[2].splitlines() == [
            ", in cluster east:", "  at once: 1 in all", "  1. a1: in order",
            "In this order, in cluster west:", "  1. a2: in order",
            "In this order, of hosts in no cluster:", "  1. b1: in order"]
        assert [line for line in markdown(fleet).splitlines() if "In this order" in line] == [
            "## In this order, in cluster east", "## In this order, in cluster west",
            "## In this order, of hosts in no cluster"]

    @pytest.mark.parametrize("rollouts", [
        # One of another cluster that could not be planned, and one where nothing is to be done
        [{"name": "east", "alone": False, "rollout": {"units": UNITS}}],
        [{"name": "east", "rollout": {"units": UNITS}}, {"name": "idle", "rollout": {"units": []}}]])
    def test_the_only_one_that_is_left_of_several_has_its_name(self, rollouts: List[Dict[str, Any]]) -> None:
        fleet = self.fleet(*rollouts)
        assert "\nIn this order, in cluster east:\n" in text(fleet)
        assert "\n## In this order, in cluster east\n" in markdown(fleet)

    def test_what_is_stopped_or_refused_is_among_those_that_are_shown(self) -> None:
        """Of twelve clusters not all fit. They are told in their order where they do."""
        found = Noted()
        for host in numbered(1, 480):
            found.add(host, UPGRADE)
        urgent = (9, 11)
        rollouts = [{"name": "c%02d" % each, "head": [*(["stopped: %d failed" % each] if each in urgent else []),
                                                     "at once: 4 in all", "places: 4 of 4 free"],
                     "rollout": {"units": [{"hosts": [host], "why": "of %s" % host}
                                           for host in numbered(40 * each + 1, 40 * each + 40)]}} for each in range(12)]
        clusters = [ClusterNote("c%02d" % each, "u%d" % each, "", Plan(refusals=(BUSY,) if each in urgent else ()),
                                (BUSY,) if each in urgent else ()) for each in range(12)]
        fleet = found.fleet(clusters=clusters, rollouts=rollouts)
        told = text(fleet, MOST_LINES, "See it.")
        names = re.findall("^In this order, in cluster (.*):$", told, re.MULTILINE)
        assert names[:3] == ["c09", "c11", "c00"] and len(names) < 12
        assert "  stopped: 9 failed" in told and "  stopped: 11 failed" in told
        assert re.findall("^cluster (.*?): ", told, re.MULTILINE)[:3] == ["c09", "c11", "c00"]
        whole = text(fleet)
        assert re.findall("in cluster (.*):$", whole, re.MULTILINE) == ["c%02d" % each for each in range(12)]

    def test_those_that_are_stopped_or_refused_and_do_not_fit_are_counted(self) -> None:
        rollouts = [{"name": "c%02d" % each, "head": ["stopped: x"], "rollout": {"units": self.UNITS[:1]}}
                    for each in range(40)]
        found = Noted().add("a1", UPGRADE)
        clusters = [ClusterNote("c%02d" % each, "u%d" % each, "", None, (BUSY,)) for each in range(40)]
        told = text(found.fleet(clusters=clusters, rollouts=rollouts), MOST_LINES)
        for what in ("stopped", "refused"):
            ((others, of_them),) = re.findall("(\\d+) other clusters, (\\d+) of them %s$" % what, told, re.MULTILINE)
            assert others == of_them != "0", told

    def test_one_that_is_stopped_and_has_no_order_is_told(self) -> None:
        fleet = self.fleet({"name": "east", "head": self.HEAD[:1], "rollout": {"units": []}})
        assert text(fleet).splitlines()[-2:] == ["The rollout:", "  " + self.HEAD[0]]
        assert "| Why here" not in markdown(fleet)


class TestPages:
    EVIL = "<script>alert(1)</script> [x](http://evil) `a` | **b** ![y](z) &amp; </pre>\x1b[2J\u202e\n# head"

    def fleet(self) -> Fleet:
        step = Step("a", self.EVIL, self.EVIL, self.EVIL, Disruption.none, {
            "before": None, "after": self.EVIL + "\n````\n</pre>"})
        refusal = replace(BUSY, found=self.EVIL, wanted=self.EVIL, remedy=self.EVIL)
        found = Noted().add("gpu-1", Plan(steps=(step,), notes=(self.EVIL,), kept=(Kept(self.EVIL, self.EVIL),)))
        found.add(self.EVIL, Plan(refusals=(refusal,)), pods=(self.EVIL,))
        found.without("gpu-3", Standing.unreachable, why=self.EVIL)
        unit = {"hosts": ["gpu-1"], "why": self.EVIL, "jobs": [self.EVIL]}
        return found.fleet(clusters=[replace(CLUSTER, name=self.EVIL, plan=Plan(steps=(step,)))], rollouts=[
            {"name": self.EVIL, "head": [self.EVIL], "rollout": {"units": [unit]}}] * 2)

    def test_html_is_well_formed_and_has_nothing_of_a_host_s_in_its_markup(self) -> None:
        page = as_html(self.fleet(), "today")
        found = _Tags()
        found.feed(page)
        assert found.open == [] and found.text.count("<script>alert(1)</script>") >= 10
        assert found.tags <= {"html", "head", "meta", "title", "style", "body", "h1", "h2", "h3", "p", "table", "thead",
                              "tbody", "tr", "th", "td", "ul", "li", "pre"}
        assert found.attributes <= {"lang", "charset", "http-equiv", "content", "name"}
        assert not re.search(r"url\(|@import", page.split("<body>")[0])
        assert "prefers-color-scheme: dark" in page and "@media print" in page

    def test_markdown_has_nothing_of_a_host_s_in_its_markup(self) -> None:
        page = markdown(self.fleet(), "today")
        outside = re.sub(r"^(`{3,})\n.*?^\1$", "", page, flags=re.DOTALL | re.MULTILINE)
        bare = re.sub(r"\\.", "", outside)
        assert "script" in bare and not re.search(r"<|`|\]\(|\*\*|!\[|&", bare)
        assert [line for line in outside.splitlines() if line.startswith("# ")] == ["# Plan of 3 hosts"]
        assert {len(re.findall(r"(?<!\\)\|", line)) for line in outside.splitlines() if "Alert" in line} <= {4, 5}
        assert "`````" in page

    @pytest.mark.parametrize("words", ["www.evil.example", "see (WWW.evil.example)", "https://www.evil.example/x"])
    def test_markdown_makes_no_link_of_a_name(self, words: str) -> None:
        """GitHub and GitLab make links without markup: https://github.github.com/gfm/#autolinks-extension-"""
        page = markdown(Noted().add("gpu-1", Plan(notes=(words,))).fleet())
        assert words in page.replace("\\", "") and not re.search(r"(?i)www\.|https?:", page)

    @pytest.mark.parametrize("written", [markdown, as_html, lambda fleet, _taken: text(fleet)])
    def test_no_terminal_obeys_it(self, written: Any) -> None:
        assert not re.search("[\x1b\u202e]", written(self.fleet(), "today"))

    def test_they_have_the_whole_of_it(self) -> None:
        fleet = of_500().fleet(clusters=[CLUSTER])
        for page in (markdown(fleet), as_html(fleet)):
            plain = page.replace("\\", "")
            for words in ("gpu-[001-412]", "Its BIOS is old", "580.178.04", "image: a -", fleet.digest,
                          "driver.version_not_offered", "No route"):
                assert words in plain, words


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: List[str] = []
        self.tags: Set[str] = set()
        self.attributes: Set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _value in attrs)
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_nothing_has_a_password_of_a_url() -> None:
    secret = "http://u:s3cret@mirror.example/x"
    step = Step("a", "file.write", secret, secret, change={"before": None, "after": "proxy=%s\n" % secret})
    refusal = replace(BUSY, found=secret)
    found = Noted().add("gpu-1", Plan(steps=(step,), notes=(secret,))).add("gpu-2", Plan(refusals=(refusal,)))
    found.without("gpu-3", Standing.failed, refusals=(refusal,)).without("gpu-4", Standing.unreachable, why=secret)
    fleet = found.fleet(clusters=[replace(CLUSTER, plan=Plan(steps=(step,)), refusals=()),
                                  replace(CLUSTER, uid="2", refusals=(refusal,))],
                        rollouts=[{"name": secret, "head": [secret], "rollout": {"units": [
                            {"hosts": ["gpu-1"], "why": secret, "jobs": [secret]}]}}] * 2)
    for told in (text(fleet), markdown(fleet), as_html(fleet), json.dumps(fleet.to_dict())):
        assert "s3cret" not in told and "mirror.example/x" in told.replace("\\", "")


class TestApproval:
    def index(self, **more: Any) -> Dict[str, Any]:
        found = Noted().add("gpu-1", UPGRADE).add("gpu-2", Plan(refusals=(BUSY,)))
        found.without("gpu-3", Standing.unreachable)
        return dict(index_of(found.notes, [CLUSTER]), **more)

    def promise(self, host: str) -> str:
        return digest(replace(UPGRADE, host=host).promise())

    def test_its_digest_is_that_of_the_fleet(self) -> None:
        found = Noted().add("gpu-1", UPGRADE).add("gpu-2", Plan(refusals=(BUSY,)))
        found.without("gpu-3", Standing.unreachable)
        assert found.fleet(clusters=[CLUSTER]).digest == digest(self.index())

    def test_what_was_approved_is_approved(self) -> None:
        require(self.index(), digest(self.index()), HOSTS, "gpu-1", self.promise("gpu-1"))
        require(self.index(), digest(self.index()), CLUSTERS, "uid-1", "0123")

    @pytest.mark.parametrize("host, code", [
        ("gpu-2", "approval.nothing_approved"), ("gpu-3", "approval.nothing_approved"),
        ("gpu-4", "approval.not_of_this_fleet"), ("gpu-1", "approval.plan_exchanged")])
    def test_another_host_or_plan_is_refused_by_name(self, host: str, code: str) -> None:
        with pytest.raises(GpuOpsError) as refused:
            require(self.index(), digest(self.index()), HOSTS, host, "another")
        assert refused.value.refusals[0].code == code and host in refused.value.found

    @pytest.mark.parametrize("host, code", [
        ("gpu-3", "approval.nothing_approved"), ("gpu-4", "approval.not_of_this_fleet"),
        ("gpu-1", "approval.no_plan")])
    def test_one_without_a_file_is_refused_by_what_the_index_says(self, host: str, code: str, tmp_path: Path) -> None:
        """A host that could not be reached, and a new one, have none. What is to be done keeps the approval of others:
        a new plan in the same directory would take its place."""
        save_fleet(str(tmp_path), self.index(), "", "")
        with pytest.raises(GpuOpsError) as refused:
            approved_plan(str(tmp_path), host, digest(self.index()))
        (refusal,) = refused.value.refusals
        assert refusal.code == code and "in another directory" in refusal.remedy
        with pytest.raises(GpuOpsError) as of_cluster:
            approved_plan_of_cluster(str(tmp_path), "uid-2", digest(self.index()))
        assert of_cluster.value.refusals[0].code == "approval.not_of_this_fleet"

    def test_a_plan_that_is_as_it_was_is_read(self, tmp_path: Path) -> None:
        save_fleet(str(tmp_path), self.index(), "", "")
        plan = replace(UPGRADE, host="gpu-1").to_dict()
        save(plan, plan_path(str(tmp_path), "gpu-1"))
        assert approved_plan(str(tmp_path), "gpu-1", digest(self.index())) == json.loads(json.dumps(plan))

    def test_another_fleet_is_refused_by_its_digest(self) -> None:
        other = self.index(clusters={})
        with pytest.raises(GpuOpsError) as refused:
            require(other, digest(self.index()), HOSTS, "gpu-1", self.promise("gpu-1"))
        assert refused.value.refusals[0].code == "approval.of_another_fleet"
        assert digest(other) in refused.value.found and digest(self.index()) in refused.value.refusals[0].wanted

    @pytest.mark.parametrize("changed", [
        lambda found: found.add("gpu-9", Plan()), lambda found: found.notes.pop(),
        lambda found: found.notes.append(replace(found.notes.pop(), promise="another"))])
    def test_another_host_or_promise_is_another_digest(self, changed: Any) -> None:
        found = Noted().add("gpu-1", UPGRADE).add("gpu-2", REBOOTING)
        before = found.fleet().digest
        changed(found)
        assert found.fleet().digest != before


def test_the_later_note_of_a_host_counts() -> None:
    notes = [Note("gpu-1", Standing.unreachable, why="x"), Note("gpu-1", Standing.left_out)]
    assert fleet_of(["gpu-1"], notes, {}).parts["left_out"] == ("gpu-1",)
    assert fleet_of(["gpu-2"], notes, {}).parts["unasked"] == ("gpu-2",)
