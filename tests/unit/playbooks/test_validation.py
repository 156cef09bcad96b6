# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""gpu_validation reads the cluster from the controller; the host learns nothing of the cluster."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List

from cluster_api import TOKEN, Api
from cluster_objects import node
from controller import Controller

VALIDATION = "gpuops.nvidia.gpu_validation"
SECRETS = {"api_key": "the-token-of-the-api", "password": "the-password-of-the-api",
           "proxy": "http://proxy-user:the-password-of-the-proxy@192.0.2.1:3128",
           "proxy_headers": {"basic_auth": "someone:the-header-of-the-api"}}
SECRET_WORDS = (b"the-token-of", b"the-password-of", b"the-header-of")


def transferred(controller: Controller, task: Dict[str, Any], **given: Any) -> List[Path]:
    """What came to the host for a task with the cluster's options as defaults of their group."""
    remote = controller.folder / "remote"
    play = controller.folder / "play.json"
    play.write_text(json.dumps([{
        "hosts": "all", "gather_facts": False, "tasks": [{**task, "ignore_errors": True}],
        "module_defaults": {"group/gpuops.nvidia.cluster": {"host": "https://192.0.2.1:6443", **SECRETS}}}]))
    done = controller.play(str(play), "-vvv", environment={
        "ANSIBLE_KEEP_REMOTE_FILES": "true", "ANSIBLE_REMOTE_TEMP": str(remote)}, **given)
    assert "unreachable=0" in done.stdout, done.stdout
    for word in SECRET_WORDS:
        assert word.decode() not in done.stdout
    return [path for path in remote.rglob("*") if path.is_file()]


def test_credentials_of_the_cluster_do_not_travel_to_the_host(controller: Controller) -> None:
    files = transferred(controller, {VALIDATION: {"status_files": False}})
    payloads = [path.read_bytes() for path in files if path.name.startswith("AnsiballZ")]
    assert payloads and all(b"status_files" in payload for payload in payloads)
    assert [str(path) for path in files if any(word in path.read_bytes() for word in SECRET_WORDS)] == []


def test_the_cluster_is_read_with_what_the_environment_says(controller: Controller, api: Api) -> None:
    api.state.nodes = [node("gpu-1", allocatable={"nvidia.com/gpu": "8"}, capacity={"nvidia.com/gpu": "8"})]
    ((result,),) = controller.tasks(
        [{VALIDATION: {"scope": "cluster", "node_name": "gpu-1", "expected_gpus": "8", "pod": "no"}}],
        environment={"K8S_AUTH_HOST": api.url, "K8S_AUTH_API_KEY": TOKEN, "K8S_AUTH_VERIFY_SSL": "false"})
    assert [check["status"] for check in result["checks"]] == ["passed"], result


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
