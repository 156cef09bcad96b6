# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""gpu_validation reads the cluster from the controller; the host learns nothing of the cluster."""
from __future__ import annotations

import json
from typing import Any, Dict

from cluster_api import TOKEN, Api
from cluster_objects import node, pod
from controller import Controller

VALIDATION = "gpuops.nvidia.gpu_validation"
SECRETS = {"api_key": "the-token-of-the-api", "password": "the-password-of-the-api",
           "proxy": "http://proxy-user:the-password-of-the-proxy@192.0.2.1:3128",
           "proxy_headers": {"basic_auth": "someone:the-header-of-the-api"}}
SECRET_WORDS = (b"the-token-of", b"the-password-of", b"the-header-of")


def test_credentials_of_the_cluster_do_not_travel_to_the_host(controller: Controller) -> None:
    payloads = controller.payloads({VALIDATION: {"status_files": False}}, module_defaults={
        "group/gpuops.nvidia.cluster": {"host": "https://192.0.2.1:6443", **SECRETS}})
    assert payloads and all(b"status_files" in payload for payload in payloads)
    assert not any(word in payload for payload in (*payloads, controller.told.encode()) for word in SECRET_WORDS)


def test_the_cluster_is_read_with_what_the_environment_says(controller: Controller, api: Api) -> None:
    api.state.nodes = [node("gpu-1", allocatable={"nvidia.com/gpu": "8"}, capacity={"nvidia.com/gpu": "8"})]
    ((result,),) = controller.tasks(
        [{VALIDATION: {"scope": "cluster", "node_name": "gpu-1", "expected_gpus": "8", "pod": "no"}}],
        environment={"K8S_AUTH_HOST": api.url, "K8S_AUTH_API_KEY": TOKEN, "K8S_AUTH_VERIFY_SSL": "false"})
    assert [check["status"] for check in result["checks"]] == ["passed"], result


def asked(api: Api, **options: Any) -> Dict[str, Any]:
    return {VALIDATION: {"scope": "cluster", "node_name": "gpu-1", "timeout": 0, "host": api.url, "api_key": TOKEN,
                         "validate_certs": False, **options}, "ignore_errors": True}


def test_what_a_node_must_offer_follows_from_the_devices_of_its_host(controller: Controller, api: Api) -> None:
    there = {"nvidia.com/gpu": "6", "nvidia.com/mig-1g.10gb": "14"}
    api.state.nodes = [node("gpu-1", allocatable=there, capacity=there)]
    devices = {"whole": 6, "divided": 2, "empty": 0, "mig": {"1g.10gb": 14}}
    answers = controller.tasks([
        asked(api, devices=devices, expected_gpus=8, pod=False),
        asked(api, devices={**devices, "mig": {"1g.10gb": 7}}, pod=False),
        asked(api, devices=devices, pod=False, device_plugin_config={"flags": {"migStrategy": "single"}}),
        asked(api, devices=devices, pod=False, expected_resources={"nvidia.com/gpu": 6, "nvidia.com/mig-1g.10gb": 14}),
        asked(api, expected_gpus=6, resource="nvidia.com/gpu", pod=False),
        asked(api, devices={**devices, "mig": {"1c.1g.10gb": 14}}, pod=False, device_plugin_version="v0.20.0"),
        asked(api, pod=False)])
    told = [result.get("code", "passed") for (result,) in answers]
    assert told == ["passed", "validation.check_failed", "cluster.devices_not_offerable", "passed", "passed",
                    "cluster.devices_not_offerable", "validation.option_missing"], answers


def test_on_a_node_whose_devices_are_all_at_work_no_probe_waits_for_one(controller: Controller, api: Api) -> None:
    api.state.nodes = [node("gpu-1", capacity={"nvidia.com/gpu": "2"})]
    api.state.pods = [pod("trainer", gpus=2)]
    ((result,),) = controller.tasks([asked(api, expected_gpus=2)])
    assert [(check["name"], check["status"]) for check in result["checks"]] == [
        ("allocatable", "passed"), ("pod", "skipped")], result
    assert "team/trainer" in result["checks"][1]["evidence"] and not api.state.requests[-1].method == "POST"


def test_a_credential_is_in_no_answer(controller: Controller) -> None:
    connection = {"host": "http://192.0.2.1:1", **SECRETS, "proxy": SECRETS["proxy"].replace("192.0.2.1", "127.0.0.1")}
    local = {"delegate_to": "localhost", "ignore_errors": True}
    scope = {"scope": "cluster", "node_name": "gpu-1", "expected_gpus": 8, "timeout": 0}
    answers = controller.tasks([
        {VALIDATION: {**scope, **connection}, **local},
        {"gpuops.nvidia.gpu_cluster_info": connection, **local}])
    assert [result["failed"] for (result,) in answers] == [True, True], answers
    assert "192.0.2.1" in json.dumps(answers)
    assert not any(word.decode() in json.dumps(answers) for word in SECRET_WORDS), answers


def test_an_option_that_there_is_not_is_refused_on_the_controller(controller: Controller) -> None:
    ((result,),) = controller.tasks([{VALIDATION: {"expected_gpu": 8}}])
    assert result["failed"] and "expected_gpu" in result["found"], result
