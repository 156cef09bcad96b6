# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is read of a guest, what is written for its license, and what nobody may read of it."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence

import gpu_hosts
import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.capability import Run, plan_of
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import CommandResult, Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Step
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware import nvml
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.nvml import NvmlGpu, NvmlReading
from ansible_collections.gpuops.nvidia.plugins.module_utils.registry import secrets_of
from ansible_collections.gpuops.nvidia.plugins.module_utils.validation.checks import Check, Evidence, vgpu_license
from ansible_collections.gpuops.nvidia.plugins.module_utils.vgpu import executors, observation
from ansible_collections.gpuops.nvidia.plugins.module_utils.vgpu.capability import CAPABILITY
from ansible_collections.gpuops.nvidia.plugins.module_utils.vgpu.catalogue import CONFIGURATION, TOKEN_FILE, TOKENS
from ansible_collections.gpuops.nvidia.plugins.module_utils.vgpu.policy import ARGUMENTS, Policy, policy_of

VERSION = "580.178.04"
SECRET = "eyJhbGciOiJS.c2VjcmV0LW9mLXRoZQ.bGljZW5zZXM_-"
GUEST = gpu_hosts.facts(gpu_hosts.T4, vgpu_manager="580.126", driver_installed=VERSION, driver_boots=VERSION,
                        driver_userspace=VERSION, driver_loaded=VERSION)


class Guest(Host):
    """A scratch root whose service runs when it is started; a license comes with the token."""

    def __init__(self, root: Path) -> None:
        super().__init__(str(root))
        self.asked: List[str] = []
        self.active = self.enabled = False

    def boot(self) -> str:
        return "boot"

    def run(self, argv: Sequence[str], check: bool = True, **_options: Any) -> CommandResult:
        words = " ".join(argv)
        self.asked.append(words)
        out = ""
        if words.startswith("systemctl show"):
            out = "LoadState=loaded\nActiveState=%s\nSubState=%s\nActiveEnterTimestampMonotonic=7\n" % (
                ("active", "running") if self.active else ("inactive", "dead"))
        elif words.startswith("systemctl is-enabled"):
            out = "enabled\n" if self.enabled else "disabled\n"
        elif words.startswith(("systemctl start", "systemctl restart")):
            self.active = True
        elif words.startswith(("systemctl enable", "systemctl disable")):
            self.enabled = words.split()[1] == "enable"
        return CommandResult(tuple(argv), 0, out, "")


def given(**options: Any) -> Dict[str, Any]:
    return {**{name: option.get("default") for name, option in ARGUMENTS.items()}, **options}


@pytest.fixture
def guest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Guest:
    host = Guest(tmp_path)
    for directory in ("var/lib", "run"):
        (tmp_path / directory).mkdir(parents=True)

    def read(*_words: Any, **_options: Any) -> NvmlReading:
        state = "licensed" if host.active and host.exists(TOKEN_FILE) else "unlicensed"
        return NvmlReading(VERSION, gpus=(NvmlGpu(0, pci_address="0000:01:00.0", license={"state": state}),))

    monkeypatch.setattr(nvml, "read_nvml", read)
    monkeypatch.setattr(nvml, "_readings", {})
    monkeypatch.setattr(executors, "host_facts", lambda _host: GUEST)
    monkeypatch.setattr(executors, "PAUSE_SECONDS", 0.01)
    return host


def run(host: Host, options: Mapping[str, Any]) -> Run:
    nvml.forget()
    return Run(CAPABILITY, options, host, lambda _host: GUEST)


def everything(root: Path) -> Dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_a_guest_gets_its_license_and_a_second_run_changes_nothing(guest: Guest, tmp_path: Path) -> None:
    outcome = run(guest, given(token=SECRET)).apply()
    assert [step.split("/")[1] for step in outcome.applied] == [
        "token.write", "file.write", "service.enable", "service.start", "license.wait"]
    assert (guest.read(TOKEN_FILE), guest.mode(TOKEN_FILE)) == (SECRET + "\n", 0o600)
    assert run(guest, given(token=SECRET)).apply().applied == []
    run(guest, given(state="absent")).apply()
    assert not guest.exists(TOKEN_FILE) and not guest.exists(CONFIGURATION) and not guest.enabled


def test_the_token_is_in_its_file_alone(guest: Guest, tmp_path: Path) -> None:
    planned = run(guest, given(token=SECRET)).preview()
    told = json.dumps(planned.plan.to_dict()) + json.dumps(planned.plan.diff())
    outcome = run(guest, given(token=SECRET)).apply()
    told += json.dumps(outcome.plan.to_dict())
    other = run(guest, given(token=SECRET[:-1] + "x")).apply()
    told += json.dumps(other.plan.to_dict()) + json.dumps(run(guest, given(state="absent")).preview().plan.to_dict())
    assert SECRET not in told and SECRET[:-1] not in told
    assert [name for name, data in everything(tmp_path).items() if SECRET[:-1].encode() in data] == [TOKEN_FILE[1:]]
    assert SECRET not in repr(policy_of(given(token=SECRET)))


def test_the_token_is_hidden_where_it_lies_within_an_option() -> None:
    assert list(secrets_of({"vgpu": {"token": SECRET}, "driver": {"version": "580"}, "mig": None})) == [SECRET]


def test_the_digest_of_a_policy_tells_nothing_of_its_token(guest: Guest) -> None:
    plans = [plan_of(CAPABILITY, given(token=token), guest, GUEST)[0] for token in (SECRET, SECRET[:-1] + "x")]
    assert plans[0].policy == plans[1].policy
    assert plans[0].steps[0].change["after"] != plans[1].steps[0].change["after"]


def test_a_token_that_others_may_read_is_written_anew(guest: Guest) -> None:
    run(guest, given(token=SECRET)).apply()
    Path(guest.path(TOKEN_FILE)).chmod(0o744)
    assert run(guest, given(token=SECRET)).apply().applied[0].startswith("vgpu/token.write/")
    assert guest.mode(TOKEN_FILE) == 0o600


def test_a_step_of_another_token_is_refused(guest: Guest) -> None:
    change = {"before": {"token": None}, "after": {"token": "sha256 1"}}
    step = Step("vgpu", "token.write", TOKEN_FILE, "", change=change)
    with pytest.raises(GpuOpsError) as caught:
        executors.secret_executors(Policy(token=SECRET))["token.write"](guest, Journal(guest), step)
    assert caught.value.code == "vgpu.token_missing" and not guest.exists(TOKEN_FILE)


def test_a_license_that_does_not_come_is_told(guest: Guest) -> None:
    with pytest.raises(GpuOpsError) as caught:
        executors.wait(guest, Journal(guest), Step("vgpu", "license.wait", "GPUs", "", parameters={"limit": 0.05}))
    assert caught.value.code == "vgpu.unlicensed" and "GPU 0 (0000:01:00.0)" in caught.value.found


def test_a_host_of_whole_gpus_is_asked_nothing(guest: Guest) -> None:
    facts = gpu_hosts.facts(gpu_hosts.T4)
    assert observation.observe(guest, Journal(guest), Policy(), facts) == observation.Observation()
    assert guest.asked == []


def test_tokens_of_others_are_named(guest: Guest) -> None:
    name = TOKENS + "/client_configuration_token_07-01.tok"
    guest.write(name, "x")
    assert observation.observe(guest, Journal(guest), Policy(), GUEST).others == (name,)


@pytest.mark.parametrize("options, code", [
    ({"token": "-----BEGIN"}, "vgpu.token_malformed"), ({"token": "a.b"}, "vgpu.token_malformed"),
    ({"token": "a.b.c\nd"}, "vgpu.token_malformed"), ({"config": {"FeatureType": 2}}, "vgpu.config_malformed"),
    ({"config": {"a b": 1}}, "vgpu.config_malformed"), ({"config": {"A": "1\n2"}}, "vgpu.config_malformed")])
def test_what_cannot_be_wanted_is_refused_and_a_token_is_not_shown(options: Dict[str, Any], code: str) -> None:
    with pytest.raises(GpuOpsError) as caught:
        policy_of(given(**options))
    assert caught.value.code == code and "BEGIN" not in str(caught.value.result())
    assert policy_of(given(token=" %s\n" % SECRET)).token == SECRET


# the validation


def checked(state: str, is_asked: bool = True, error: str = "") -> Check:
    gpu = NvmlGpu(0, pci_address="0000:01:00.0", license={"state": state} if state else {})
    return vgpu_license(Evidence(
        facts=GUEST, nvml=NvmlReading(VERSION, gpus=(gpu,), error=error), device_nodes=(), cdi_spec="", cdi_devices=0,
        cdi_version="", runtime="", handlers=(), handler="nvidia", expected_gpus=None, license_asked=is_asked))


def test_a_guest_without_a_license_takes_no_work() -> None:
    failed = checked("unlicensed")
    assert failed.status == "failed" and "0000:01:00.0" in failed.evidence
    assert [checked("licensed").status, checked("").status, checked("unlicensed", False).status] == ["passed"] * 3
    assert checked("unlicensed", error="no driver is loaded").status == "skipped"


def test_whether_a_license_is_asked_for_is_what_the_file_says(guest: Guest) -> None:
    assert observation.asks_for_license(guest)
    guest.write(CONFIGURATION, "#FeatureType=0\nFeatureType = 0\n")
    assert not observation.asks_for_license(guest)
