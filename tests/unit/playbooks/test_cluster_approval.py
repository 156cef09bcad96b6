# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is done to a cluster is what was saved, read and approved, or less of it."""
from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any, Dict

import pytest
from cluster_api import Api
from controller import Controller
from object_store import Store

ALL = "gpuops.nvidia.gpu_components"
COMPONENTS = ["gpu_feature_discovery", "device_plugin"]


@pytest.fixture
def api(api: Api) -> Api:
    api.state.store = Store(has_controllers=True)
    api.state.store.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-system"}})
    return api


@pytest.fixture
def plans(tmp_path: Path) -> Path:
    return tmp_path / "plans"


def told(controller: Controller, api: Api, *options: str, task: Any = None, **given: Any) -> Dict[str, Any]:
    ((result,),) = controller.tasks([{ALL: {"components": COMPONENTS, "kubeconfig": str(api.kubeconfig), **given},
                                      **(task or {})}], *options)
    return result


def test_an_approved_plan_is_done_and_nothing_is_left_of_it(controller: Controller, api: Api, plans: Path) -> None:
    saved = told(controller, api, task={"check_mode": True}, save_to=str(plans))
    (path,) = plans.iterdir()
    assert saved["clusters"][0]["saved_as"] == str(path) and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(path.read_text()) == saved["clusters"][0]["plan"]
    assert api.state.store is not None and api.state.store.writes == []
    assert told(controller, api, approved_from=str(plans))["changed"]
    # What is done already is less than what was approved
    assert not told(controller, api, approved_from=str(plans))["changed"]


def test_more_than_was_approved_is_refused_before_the_first_write(
    controller: Controller, api: Api, plans: Path
) -> None:
    told(controller, api, task={"check_mode": True}, save_to=str(plans))
    refused = told(controller, api, approved_from=str(plans), device_plugin={"env": {"CDI_DISABLE_HOOKS": "all"}})
    assert refused["failed"] and refused["code"] == "approval.of_other_options"
    assert api.state.store is not None and api.state.store.writes == []


def test_a_change_of_others_since_then_is_refused(controller: Controller, api: Api, plans: Path) -> None:
    told(controller, api)
    told(controller, api, task={"check_mode": True}, save_to=str(plans))
    assert api.state.store is not None
    api.state.store.edit("DaemonSet", "gpuops", "nvidia-device-plugin", metadata={"labels": {
        "app.kubernetes.io/part-of": "mine"}})
    refused = told(controller, api, approved_from=str(plans))
    assert refused["failed"] and refused["code"] == "approval.step_not_approved"


def test_where_something_is_to_be_done_and_nothing_was_approved_it_is_refused(
    controller: Controller, api: Api, plans: Path
) -> None:
    refused = told(controller, api, approved_from=str(plans))
    assert refused["failed"] and refused["code"] == "approval.no_plan"
    assert api.state.store is not None and api.state.store.writes == []
