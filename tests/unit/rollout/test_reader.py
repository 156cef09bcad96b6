# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What gpu_rollout tells people: how a rollout stands, the command that frees a host, and options without an effect."""
from __future__ import annotations

import json
import shlex
from datetime import datetime, timedelta, timezone
from typing import Any, ClassVar, Dict, List, Sequence

import pytest
from ansible.parsing.splitter import parse_kv

from ansible_collections.gpuops.nvidia.plugins.action.gpu_rollout import (
    NAMESPACE,
    OF_CLUSTER,
    ActionModule,
    _caps_of_others,
    _freeing,
    _of_no_group,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.fleet.model import fleet_of
from ansible_collections.gpuops.nvidia.plugins.module_utils.rollout.budget import (
    FAILED,
    NodeState,
    OpenRollout,
    Pool,
    Record,
    Run,
    Slot,
    read_record,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.rollout.hosts import Known
from ansible_collections.gpuops.nvidia.plugins.plugin_utils.cluster_action import checked


def typed(**options: Any) -> "tuple[Dict[str, Any], str]":
    """What Ansible makes of the command, and what is said after it."""
    told = _freeing({"pool": "gpus", "namespace": NAMESPACE, **options}, "gpu-7")
    command, _comma, more = told.partition("', with ")
    words = shlex.split(command + ("'" if more else ""))
    assert words[:5] == ["ansible", "localhost", "-m", "gpuops.nvidia.gpu_rollout", "-a"] and len(words) == 6, words
    # As the command line takes them, and then the module
    given = json.loads(words[5]) if words[5].startswith("{") else parse_kv(words[5])
    checked(given, ActionModule.ARGUMENTS, "gpu_rollout")
    return given, more


ENDED = {"state": "ended", "outcome": "freed", "name": "gpu-7"}


class TestTheCommandThatFreesAHost:
    def test_it_names_the_cluster_by_its_url_as_the_run_does(self) -> None:
        access = {"host": "https://api.example:6443", "ca_cert": "/etc/my pki/ca.crt", "validate_certs": False,
                  "client_cert": "/etc/pki/me.crt", "client_key": "/etc/pki/me.key", "impersonate_user": "it's me",
                  "impersonate_groups": ["a", "b"]}
        given, more = typed(**access)
        assert given == {**ENDED, **access} and not more

    def test_what_is_plain_is_typed_as_people_do(self) -> None:
        given, _more = typed(host="https://[::1]:6443", kubeconfig="~/k", validate_certs=False,
                             impersonate_groups=["a", "b"])
        assert given == {**ENDED, "host": "https://[::1]:6443", "kubeconfig": "~/k", "validate_certs": "False",
                         "impersonate_groups": "a,b"}

    @pytest.mark.parametrize("access", [
        {"impersonate_user": "CORP\\nadmin"}, {"context": "CORP\\alice"}, {"kubeconfig": "/k/it's \"x\".conf"},
        {"impersonate_groups": ["CN=gpu-admins,OU=ops,DC=corp", "b"]}, {"context": "100% {% x"},
        {"context": "prod #1"}, {"ca_cert": "/etc/schl\u00fcssel/my ca"}])
    def test_what_ansible_would_read_otherwise_stays_whole(self, access: Dict[str, Any]) -> None:
        assert typed(**access) == ({**ENDED, **access}, "")

    @pytest.mark.parametrize("access, more", [
        ({"api_key": "s3cret"}, "K8S_AUTH_API_KEY set"),
        ({"kubeconfig": {"users": ["s3cret"]}}, "K8S_AUTH_KUBECONFIG set"),
        ({"username": "me", "password": "s3cret", "proxy": "http://me:s3cret@proxy"},
         "K8S_AUTH_PASSWORD and K8S_AUTH_PROXY set"),
        ({"proxy": "http://proxy", "proxy_headers": {"proxy_basic_auth": "me:s3cret"}},
         "K8S_AUTH_PROXY set and the option `proxy_headers`"),
        ({"proxy_headers": {"basic_auth": "me:s3cret"}}, "the option `proxy_headers`")])
    def test_it_has_no_secret_and_says_which_it_needs(self, access: Dict[str, Any], more: str) -> None:
        given, told = typed(host="https://api.example", **access)
        assert told == more and "s3cret" not in str(given)
        assert given == {**ENDED, "host": "https://api.example", **({"username": "me"} if "username" in access else {})}

    @pytest.mark.parametrize("variables, options, names", [
        ({"K8S_AUTH_KUBECONFIG": "/tmp/awx_4711/tmpk3yx"}, {}, ["K8S_AUTH_KUBECONFIG"]),
        ({"K8S_AUTH_KUBECONFIG": "/tmp/awx_4711/tmpk3yx"}, {"kubeconfig": "/tmp/awx_4711/tmpk3yx"},
         ["K8S_AUTH_KUBECONFIG"]),
        ({"K8S_AUTH_HOST": "https://b", "K8S_AUTH_VERIFY_SSL": "false", "K8S_AUTH_CA_CERT": "/tmp/awx_4711/tmpca"}, {},
         ["K8S_AUTH_HOST", "K8S_AUTH_VERIFY_SSL", "K8S_AUTH_CA_CERT"]),
        ({"K8S_AUTH_HOST": "https://b", "K8S_AUTH_API_KEY": "s3cret"}, {"kubeconfig": "/k", "host": None,
                                                                       "api_key": None}, [])])
    def test_what_the_environment_of_a_run_says_is_named_and_not_shown(
        self, monkeypatch: pytest.MonkeyPatch, variables: Dict[str, str], options: Dict[str, Any], names: List[str]
    ) -> None:
        """AWX writes a credential's files for the time of a job, and a command is typed after it."""
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        given = checked({"state": "ended", "outcome": "freed", **options}, ActionModule.ARGUMENTS, "gpu_rollout")
        command, more = typed(**given)
        assert more == (" and ".join(names) + " set" if names else "")
        assert command == {**ENDED, **({"kubeconfig": "/k"} if not names else {})}

    def test_what_is_not_set_is_not_in_it(self) -> None:
        given, _more = typed(kubeconfig="/k", context="", ca_cert=None, impersonate_groups=[])
        assert given == {**ENDED, "kubeconfig": "/k"}


def planned(name: str, modes: List[str], **hosts: Dict[str, str]) -> Dict[str, Any]:
    return {"name": name, "failed": False, "rollout": {
        "policy": {"unit_modes": dict.fromkeys(modes, "rolling")} if modes else {}, "hosts": hosts}}


class TestModesOfNoGroup:
    def test_a_job_by_its_name_alone_is_warned_of(self) -> None:
        (told,) = _of_no_group([planned("a", ["llama", "c.1"], h1={"job_group": "team/llama"}, h2={"clique": "c.1"})],
                               "gpu_rollout_unit_modes")
        assert told.startswith("`gpu_rollout_unit_modes` has llama, and no host") and "c.1, team/llama" in told

    def test_one_that_another_cluster_has_is_none(self) -> None:
        modes = ["c.1"]
        assert _of_no_group([planned("a", modes, h1={"clique": "c.1"}), planned("b", modes, h2={})], "x") == []
        assert _of_no_group([planned("a", [], h1={})], "x") == []

    def test_nothing_is_said_where_a_cluster_is_not_known(self) -> None:
        assert _of_no_group([planned("a", ["c.1"], h1={}), {"name": "b", "failed": True}], "x") == []


@pytest.mark.parametrize("reason", ["it does not load", "It does not load.", "not loaded [driver.not_loaded]"])
def test_a_failed_change_is_told_of_a_node_in_service_as_of_one_that_is_not(reason: str) -> None:
    """A change up to service_restart never takes its node out, and one that cannot be drained is put back."""
    action = ActionModule.__new__(ActionModule)
    slot = Slot("gpu-7", "a@here", datetime(2026, 7, 1, tzinfo=timezone.utc), FAILED, reason=reason)
    told = action._left("node-7", slot, {"pool": "gpus", "namespace": NAMESPACE})
    assert told.startswith("The change of gpu-7 has failed (2026-07-01T00:00:00+00:00): %s. It keeps its place. "
                           "When it was looked at: ansible localhost " % reason.rstrip("."))


@pytest.mark.parametrize("caps, is_told", [
    ('', False), ('{"gpus": {"limit": "1"}}', False), ('{"other": {"limit": "1"}, "gpus": {"limit": "1"}}', False),
    ('{"gpu": {"limit": "1"}}', True)])
def test_caps_of_another_pool_alone_are_told(caps: str, is_told: bool) -> None:
    told = _caps_of_others(read_record("", caps), "gpus")
    assert bool(told) is is_told and all("pool gpu, and of pool gpus there is none" in each for each in told)


class TestHowItStands:
    """By the limits that count for who begins now."""

    NOW: ClassVar[datetime] = datetime(2026, 7, 1, 12, 0, tzinfo=timezone.utc)
    WAITS: ClassVar[str] = "run b@awx of awx has another rollout open in this pool since Wed 2026-07-01 11:00 UTC"

    def planned(self, record: Record, beside: Sequence[NodeState] = (), **options: Any) -> Dict[str, Any]:
        action = ActionModule.__new__(ActionModule)
        action._variables = {name: "gpu_rollout_" + name for name in OF_CLUSTER}
        action._run = "a@here"
        told = {"converged": False, "disruption": "driver_reload", "change": {"digest": "d", "policy": "driver=1"}}
        action._known = [Known("gpu-%d" % each, "gpu-%d" % each, told) for each in range(4)]
        given = checked({"state": "planned", "canaries": "none", "aim": "driver", **options}, ActionModule.ARGUMENTS,
                        "gpu_rollout")
        nodes = [*(NodeState(known.node) for known in action._known), *beside]
        return action._planned(given, record, {state.name: state for state in nodes}, {}, {}, self.NOW)

    def opened(self, aim: str, limit: str = "", *runs: str, done: Sequence[str] = ()) -> Record:
        began = self.NOW - timedelta(hours=1)
        there = OpenRollout(aim, began, {"%s@awx" % name: Run("awx", began, began, 600) for name in runs},
                            dict.fromkeys(done, began))
        return Record({"gpus": Pool(limit, "", there if runs else None)})

    def test_caps_in_the_cluster_count(self) -> None:
        told = self.planned(read_record("", '{"gpus": {"limit": "1", "domain_limit": "1"}}'), limit=3)
        at_once = ["at once: 1 in all; 1 of failure domain unknown", "places: 1 of 1 free"]
        assert told["head"] == at_once and all(line in told["text"] for line in at_once)
        assert told["decision"]["may_start"] == [told["rollout"]["units"][0]["name"]]
        # They are added by whoever asks, and may be others then
        assert told["rollout"]["limits"] == {"total": 3, "domains": {}}

    @pytest.mark.parametrize("aim, limit, runs, places", [
        ("driver", "1", ["b"], 1), ("driver", "1", [], 3), ("other", "1", [], 3)])
    def test_the_limits_of_an_open_rollout_count_for_who_joins_it(
        self, aim: str, limit: str, runs: List[str], places: int
    ) -> None:
        told = self.planned(self.opened(aim, limit, *runs), limit=3)
        assert told["head"] == ["at once: %d in all" % places, "places: %d of %d free" % (places, places)]
        assert bool(told["warnings"]) == (places == 1)

    def test_another_open_rollout_is_told_as_who_asks_is_told_of_it(self) -> None:
        told = self.planned(self.opened("other", "1", "b"), limit=3)
        first = told["rollout"]["units"][0]["name"]
        assert told["head"] == [
            "waits: %s: %s (and 3 more)" % (first, self.WAITS), "at once: 3 in all", "places: 3 of 3 free"]
        assert told["decision"]["may_start"] == [] and told["head"][0] in told["text"]
        assert {each["cause"] for each in told["decision"]["waiting"]} == {"rollout"}

    @pytest.mark.parametrize("done", [["gpu-0"], ["gpu-0", "gpu-1", "gpu-2", "gpu-3"]])
    def test_what_that_has_changed_this_one_has_not(self, done: List[str]) -> None:
        told = self.planned(self.opened("other", "1", "b", done=done), limit=3)
        assert told["head"][0].endswith(self.WAITS + " (and 3 more)") and told["decision"]["over"] == []

    def test_what_the_last_one_of_this_aim_has_changed_is_a_measure(self) -> None:
        """Its runs are no more: whoever opens the next one goes by the health of what they have changed."""
        dead = self.opened("driver", "1", "b", done=["gpu-9"])
        told = self.planned(dead, limit=3, dead_runs=["b@awx"], beside=[NodeState("gpu-9", ready=False)])
        assert "1 changed and not healthy (node gpu-9)" in told["text"]

    def test_it_is_told_beside_what_stops_this_one(self) -> None:
        told = self.planned(self.opened("other", "1", "b"), unreachable=["gpu-3"], max_unreachable=0)
        assert [line.partition(":")[0] for line in told["head"]] == ["stopped", "waits", "at once", "places"]

    def test_runs_that_are_no_more_keep_nobody_waiting(self) -> None:
        told = self.planned(self.opened("other", "1", "b"), limit=3, dead_runs=["b@awx"])
        assert told["head"] == ["at once: 3 in all", "places: 3 of 3 free"]

    def test_what_is_stopped_is_seen_to_be(self) -> None:
        """By the plan of the fleet, which has it as lines."""
        told = self.planned(Record(), unreachable=["gpu-3"], max_unreachable=0)
        (order,) = fleet_of([], [], {}, rollouts=[told]).orders
        assert order.is_stopped and not fleet_of([], [], {}, rollouts=[self.planned(Record())]).orders[0].is_stopped
