# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the command says and does, on a scratch root with capabilities of a few lines."""
from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Set, Tuple

import pytest
from workspace import collections_root

from ansible_collections.gpuops.nvidia.plugins.module_utils import registry
from ansible_collections.gpuops.nvidia.plugins.module_utils.activation.executors import load_module
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.labels import HEALTH_CORDON
from ansible_collections.gpuops.nvidia.plugins.module_utils.core import boot_record
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.capability import Capability
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError, HostFailed
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import Gpu, HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.lock import RECORD, HostLock
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Disruption, Plan, Step
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.refusal import Refusal
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.steps import file_step, restore_steps
from ansible_collections.gpuops.nvidia.plugins.module_utils.gpuops import acts, command
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.nvml import NvmlReading
from ansible_collections.gpuops.nvidia.plugins.module_utils.health import state as health_state
from ansible_collections.gpuops.nvidia.plugins.module_utils.health.findings import Finding, Moment, Subject
from ansible_collections.gpuops.nvidia.plugins.module_utils.health.model import State
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.managers import APT
from ansible_collections.gpuops.nvidia.plugins.module_utils.validation.checks import Evidence, run_chain
from ansible_collections.gpuops.nvidia.plugins.module_utils.validation.verdict import raise_if_unhealthy

POLICY = "/etc/policy.json"
SECRET = "hunter2hunter2"


@dataclass(frozen=True)
class Seen:
    text: Optional[str]
    restorable: Tuple[Step, ...]

    def to_dict(self) -> Dict[str, Any]:
        return {"text": self.text}


def writer(name: str, disruption: Disruption = Disruption.none) -> Capability[Any, Any]:
    """Wants a text in /etc/NAME, and has a password that the text may hold."""
    def observe(host: Host, journal: Journal, policy: Mapping[str, Any], facts: HostFacts) -> Seen:
        return Seen(host.read("/etc/" + name), tuple(restore_steps(name, host, journal)))

    def plan(seen: Seen, policy: Mapping[str, Any], facts: HostFacts) -> Plan:
        if policy["text"] == "impossible":
            return Plan(refusals=(Refusal("files.wish", "a wish with %s" % policy["password"], "another", "wish"),))
        steps = (file_step(name, "/etc/" + name, seen.text, policy["text"], "It is wanted.", disruption),)
        return Plan(steps=steps if seen.text != policy["text"] else ())

    def write(host: Host, journal: Journal, step: Step) -> None:
        if step.change["after"] == "failing":
            raise GpuOpsError("files.failing", "a failure", "none", "try again")
        host.write(step.subject, step.change["after"])

    return Capability(name, {"text": {"type": "str"}, "password": {"type": "str", "no_log": True}},
                      lambda options: options, observe, plan, {"file.write": write})


CAPABILITIES = (writer("first"), writer("second", Disruption.driver_reload), writer("third"))


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    for directory in ("var/lib", "run", "etc"):
        (tmp_path / directory).mkdir(parents=True)
    for module in (registry, acts):
        monkeypatch.setattr(module, "CAPABILITIES", CAPABILITIES)
    # Units and GPUs are those of this machine else
    monkeypatch.setattr(registry, "await_startup", lambda _host: ())
    monkeypatch.setattr(registry, "pods_seen", lambda _host: ())
    monkeypatch.setattr(registry, "read_host", lambda _host: {
        "services": {}, "pci": {"gpus": [], "nvswitches": []}, "nvml": {"gpus": []}, "devices": {},
        "host": dict.fromkeys(("fabric", "driver_loaded", "driver_installed", "toolkit"))})
    for module in (registry, acts):
        monkeypatch.setattr(module, "read_facts", lambda _host: HostFacts(hostname="gpu1"))
    monkeypatch.setattr("ansible_collections.gpuops.nvidia.plugins.module_utils.core.applying.await_startup",
                        lambda _host: ())
    return Host(str(tmp_path))


def have(host: Host, **texts: str) -> None:
    """The policy of the host."""
    policy = {name: {"text": text, "password": SECRET} for name, text in texts.items()}
    host.write(POLICY, json.dumps({"schema": 1, "policy": policy}))


def called(host: Host, *words: str) -> int:
    return command.main([*words, *(["--policy", POLICY] if words[0] not in ("info", "history") else [])], host)


def result(host: Host, capsys: pytest.CaptureFixture[str], *words: str) -> Dict[str, Any]:
    called(host, *words, "--json")
    return dict(json.loads(capsys.readouterr().out))


def test_what_is_planned_is_applied_and_told(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    have(host, first="one\n", third="three\n")
    assert called(host, "plan") == 0
    planned = capsys.readouterr().out
    assert planned.startswith("gpu1: 2 steps, disruption none\n") and "/etc/first" in planned
    assert host.read("/etc/first") is None
    assert called(host, "apply") == 0
    told = capsys.readouterr()
    assert told.out == "done: first/file.write//etc/first\ndone: third/file.write//etc/third\n"
    assert told.err == "step 1 of 1: [none] file.write /etc/first\nstep 1 of 1: [none] file.write /etc/third\n"
    assert (host.read("/etc/first"), host.read("/etc/third")) == ("one\n", "three\n")
    assert called(host, "apply") == 0
    assert capsys.readouterr().out == "nothing was to be done\n"


def test_what_the_log_says_of_a_gpu_is_told_with_its_cause_and_as_of_its_generation(
    host: Host, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = {"pci_address": "0000:3b:00.0", "compute_capability": "7.0"}
    monkeypatch.setattr(acts, "read_host", lambda _host: {
        "host": HostFacts(hostname="gpu1").to_dict(), "services": {}, "pci": {"gpus": []},
        "nvml": {"gpus": [gpu], "error": ""}})
    lines = ("94, contained", "45, gone caused by previous Xid 94")
    host.write("/dev/kmsg", "".join("3,%d,%d,-;NVRM: Xid (PCI:0000:3b:00): %s\n" % (number, number, text)
                                    for number, text in enumerate(lines)))
    assert called(host, "info") == 0
    assert "Xid 45: work that was removed, for the reason of another error (1 times), caused by Xid 94" in \
        capsys.readouterr().out
    errors = result(host, capsys, "info")["observation"]["kernel_log"]["errors"]
    assert [(each["xid"], each["kind"]) for each in errors] == [(94, "warning"), (45, "event")]


def test_the_plan_is_the_one_that_the_module_makes(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    have(host, first="one\n", second="two\n")
    given = {name: {"text": text, "password": SECRET} for name, text in (("first", "one\n"), ("second", "two\n"))}
    assert result(host, capsys, "plan")["plan"] == registry.plan_host(host, given)["plan"]


def test_a_step_that_disturbs_more_is_put_off_and_said(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    have(host, first="one\n", second="two\n", third="three\n")
    assert called(host, "apply", "--allowed-disruption", "service_restart") == 0
    assert "not done: second/file.write//etc/second (It is wanted.); --allowed-disruption driver_reload lets it" in \
        capsys.readouterr().out
    assert (host.read("/etc/second"), host.read("/etc/third")) == (None, "three\n")
    done = result(host, capsys, "apply")
    assert (done["changed"], done["applied"]) == (True, ["second/file.write//etc/second"])


def test_what_is_refused_is_refused_before_the_first_write(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    have(host, first="one\n", third="impossible")
    assert called(host, "apply") == 1
    told = capsys.readouterr()
    assert told.out == "" and "[files.wish]" in told.err
    assert host.read("/etc/first") is None


def test_a_failure_tells_what_was_done_before_it(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    have(host, first="one\n", third="failing")
    failed = result(host, capsys, "apply")
    assert (failed["failed"], failed["changed"], failed["code"]) == (True, True, "files.failing")
    assert failed["applied"] == ["first/file.write//etc/first"]
    assert called(host, "apply") == 1
    assert "[files.failing]" in capsys.readouterr().err
    have(host, first="one\n", third="three\n")
    assert called(host, "apply") == 0


def test_pods_with_gpus_keep_a_disturbing_plan_away(
    host: Host, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "pods_seen", lambda _host: ("default/training",))
    have(host, first="one\n", second="two\n")
    failed = result(host, capsys, "apply")
    assert failed["code"] == "gpuops.pods_in_the_way" and "default/training" in failed["found"]
    assert host.read("/etc/first") is None
    assert called(host, "apply", "--allowed-disruption", "service_restart") == 0
    assert host.read("/etc/first") == "one\n"


def test_an_approved_plan_is_held_to(host: Host, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    have(host, first="one\n")
    host.write("/tmp.json", json.dumps(result(host, capsys, "plan")))
    have(host, first="other\n")
    assert result(host, capsys, "apply", "--approved-plan", "/tmp.json")["code"] == "approval.of_other_options"
    have(host, first="one\n")
    assert result(host, capsys, "apply", "--approved-plan", "/tmp.json")["applied"] == ["first/file.write//etc/first"]


def test_what_can_be_planned_only_after_others_is_done_too_unless_a_plan_was_read(
    host: Host, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def plan(seen: Seen, policy: Mapping[str, Any], facts: HostFacts) -> Plan:
        return CAPABILITIES[2].plan(seen, policy, facts) if host.exists("/etc/first") else Plan(
            complete=False, notes=("The third waits for the first.",))

    for module in (registry, acts):
        monkeypatch.setattr(module, "CAPABILITIES", (CAPABILITIES[0], replace(CAPABILITIES[2], plan=plan)))
    have(host, first="one\n", third="three\n")
    host.write("/tmp.json", json.dumps(result(host, capsys, "plan")))
    assert result(host, capsys, "apply", "--approved-plan", "/tmp.json")["applied"] == ["first/file.write//etc/first"]
    host.remove("/etc/first")
    assert result(host, capsys, "apply")["applied"] == ["first/file.write//etc/first", "third/file.write//etc/third"]


@pytest.mark.parametrize("text", [None, "", "[]", "{"])
def test_a_file_that_holds_no_plan_is_refused(
    host: Host, capsys: pytest.CaptureFixture[str], text: Optional[str]
) -> None:
    have(host, first="one\n")
    if text is not None:
        host.write("/tmp.json", text)
    assert result(host, capsys, "apply", "--approved-plan", "/tmp.json")["code"] == "gpuops.no_plan"


def test_secrets_of_the_policy_are_shown_nowhere(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    have(host, first="with %s in it\n" % SECRET, third="impossible")
    for words in (("plan",), ("plan", "--json"), ("apply",), ("apply", "--json")):
        called(host, *words)
        told = capsys.readouterr()
        assert SECRET not in told.out + told.err and "********" in told.out + told.err


@pytest.mark.parametrize("words", [(), ("mend",), ("plan", "--now"), ("release",), ("history", "--last", "two")])
def test_who_asks_wrongly_is_told_so_by_a_code_of_its_own(
    host: Host, capsys: pytest.CaptureFixture[str], words: Tuple[str, ...]
) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(words, host)
    told = capsys.readouterr()
    assert ended.value.code == 2 and told.out == "" and "usage: gpuops" in told.err


def test_without_a_policy_it_says_whose_it_is(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    assert called(host, "plan") == 1
    assert "[gpuops.no_policy]" in capsys.readouterr().err


def test_without_root_nothing_is_planned_or_told(
    host: Host, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    have(host, first="one\n")
    monkeypatch.setattr(Host, "is_root", lambda _host: False)
    for words in (("plan",), ("apply",), ("validate",), ("history",)):
        assert called(host, *words) == 1
        assert "[host.no_root]" in capsys.readouterr().err


def test_one_run_at_a_time(host: Host, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the command and of modules."""
    have(host, first="one\n")
    with HostLock(host, "another", "gpu_driver for somebody").held(0):
        lease = json.loads(str(host.read(RECORD)))
        host.write(RECORD, json.dumps({**lease, "pid": 1, "started": host.process_started(1)}))
        failed = result(host, capsys, "apply", "--lock-timeout", "0")
    assert failed["code"] == "host.another_run" and "gpu_driver for somebody" in failed["found"]
    host.remove(RECORD)
    assert called(host, "apply") == 0
    assert not host.exists(RECORD)


def test_what_a_package_manager_goes_on_with_is_taken_up_by_the_next_run(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever process that is."""
    have(host, first="one\n")
    lock = HostLock(host, acts.RUN, "gpuops apply for somebody")
    with lock.held(0):
        lock.hand_over()
    lease = json.loads(str(host.read(RECORD)))
    host.write(RECORD, json.dumps({**lease, "pid": 1, "started": "7"}))
    assert called(host, "apply", "--lock-timeout", "0") == 0
    assert host.read("/etc/first") == "one\n"


def test_the_history_is_of_the_journal(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    assert called(host, "history") == 0
    assert capsys.readouterr().out == "nothing was done on this host yet\n"
    have(host, first="one\n", third="failing")
    called(host, "apply")
    capsys.readouterr()
    assert called(host, "history") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(None, 2)[2] for line in lines] == [
        "started    first file.write /etc/first", "done       first file.write /etc/first in 0 s",
        "started    third file.write /etc/third",
        "failed     third file.write /etc/third in 0 s: Found: a failure. Wanted: none. Do: try again. [files.failing]"]
    assert [event["event"] for event in result(host, capsys, "history", "--last", "1")["events"]] == ["failed"]


def test_a_reader_that_goes_away_does_not_end_a_run(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the connection breaks, or somebody pipes it into head."""
    class Gone:
        def write(self, *_words: str) -> int:
            raise BrokenPipeError

        flush = fileno = write

    have(host, first="one\n", third="three\n")
    monkeypatch.setattr(command.sys, "stderr", Gone())
    monkeypatch.setattr(command.sys, "stdout", Gone())
    assert called(host, "apply") == 0
    assert host.read("/etc/third") == "three\n"


def test_a_terminal_that_hangs_up_ends_no_run_in_its_middle(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    class HungUp(BaseException):
        pass

    def end(_number: int, _frame: Any) -> None:
        raise HungUp

    write = Host.write

    def hang_up(self: Host, *words: Any, **more: Any) -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        write(self, *words, **more)

    have(host, first="one\n", third="three\n")
    before = signal.signal(signal.SIGHUP, end)
    try:
        monkeypatch.setattr(Host, "write", hang_up)
        assert called(host, "apply") == 0
        assert signal.getsignal(signal.SIGHUP) is end
    finally:
        signal.signal(signal.SIGHUP, before)
    assert host.read("/etc/third") == "three\n"


def test_what_a_full_disk_has_not_taken_is_no_result(host: Host, monkeypatch: pytest.MonkeyPatch,
                                                     capsys: pytest.CaptureFixture[str]) -> None:
    have(host, first="one\n")
    with open("/dev/full", "w", encoding="utf-8") as full:
        monkeypatch.setattr(command.sys, "stdout", full)
        assert called(host, "plan", "--json") == 1
    assert "No space left on device" in capsys.readouterr().err


@pytest.mark.parametrize("encoding, told", [
    ("latin-1", "\\u2026 \xfc"), ("ascii", "\\u2026 \\xfc"), ("utf-8", "\u2026 \xfc")])
def test_a_terminal_of_another_language_keeps_nothing_from_being_told(
    host: Host, monkeypatch: pytest.MonkeyPatch, encoding: str, told: str
) -> None:
    """And so does a file of the host that is no Unicode."""
    seen = io.BytesIO()
    monkeypatch.setattr(command.sys, "stdout", io.TextIOWrapper(seen, encoding=encoding))
    have(host, first="\u2026 \xfc\udcff\n")
    assert called(host, "plan") == 0
    assert told in seen.getvalue().decode(encoding)


@pytest.mark.parametrize("closed", ["1", "2", "0, 1, 2"])
def test_what_is_closed_keeps_no_run_from_its_end(host: Host, closed: str) -> None:
    """Nothing that is opened takes its place."""
    script = """
import os, sys
[os.close(number) for number in (%s,)]
sys.stdin, sys.stdout, sys.stderr = [
    None if number in (%s,) else each for number, each in enumerate((sys.stdin, sys.stdout, sys.stderr))]
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.gpuops import entry
code = entry.main(["history"], Host(sys.argv[1]))
assert os.open("/dev/null", os.O_RDONLY) > 2
raise SystemExit(entry.main(["plan"], Host(sys.argv[1])) - code + 7)
""" % (closed, closed)
    done = subprocess.run([sys.executable, "-c", script, host.path("/")], check=False, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, env={"PYTHONPATH": str(collections_root()), **os.environ})
    assert done.returncode == 8, done.stderr
    assert (done.stdout == "nothing was done on this host yet\n") is ("1" not in closed)


def test_who_waits_for_another_run_is_told_at_once_for_which(
    host: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    have(host, first="one\n")
    with HostLock(host, "another", "gpu_driver for somebody").held(0):
        lease = json.loads(str(host.read(RECORD)))
        host.write(RECORD, json.dumps({**lease, "pid": 1, "started": host.process_started(1)}))
        for wait, lines in (("1", 2), ("0", 1)):
            assert called(host, "plan", "--lock-timeout", wait) == 1
            told = capsys.readouterr().err.splitlines()
            assert len(told) == lines and "gpu_driver for somebody (process 1)" in told[0]
            assert told[0].startswith("waiting for another run: ") is (lines == 2)


@pytest.mark.parametrize("words", [
    ("history", "--last", "-3"), ("plan", "--lock-timeout", "-1"), ("boot", "--retry-seconds", "nan")])
def test_what_is_no_number_is_asked_wrongly(host: Host, words: Tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as caught:
        command.main(words, host)
    assert caught.value.code == 2


def test_what_is_wrong_with_a_policy_is_told_by_its_file_and_its_place(
    host: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    host.write(POLICY, '{"schema": 1,\n "policy": {"first": {"password": "%s",}}}' % SECRET)
    assert called(host, "plan") == 1
    told = capsys.readouterr().err
    assert "%s holds no policy: no JSON in line 2, column " % POLICY in told and SECRET not in told


@pytest.mark.parametrize("word", ["plan", "apply", "boot"])
def test_what_a_validation_would_refuse_of_a_policy_is_refused_before_the_first_write(
    host: Host, checks: Dict[str, Any], word: str
) -> None:
    host.write(POLICY, json.dumps({"schema": 1, "policy": {
        "first": {"text": "one\n", "password": SECRET}, "validation": {"compute": "qiuck"}}}))
    assert called(host, word) == 1
    assert (host.read("/etc/first"), checks["asked"]) == (None, [])


def test_what_was_done_before_a_second_plan_refuses_is_told(
    host: Host, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def plan(seen: Seen, policy: Mapping[str, Any], facts: HostFacts) -> Plan:
        return Plan(refusals=(Refusal("files.late", "a late refusal", "none", "mend it"),)) if host.exists(
            "/etc/first") else Plan(complete=False, notes=("The third waits for the first.",))

    for module in (registry, acts):
        monkeypatch.setattr(module, "CAPABILITIES", (CAPABILITIES[0], replace(CAPABILITIES[2], plan=plan)))
    have(host, first="one\n", third="three\n")
    failed = result(host, capsys, "apply")
    assert (failed["code"], failed["changed"], failed["applied"]) == (
        "files.late", True, ["first/file.write//etc/first"])


def test_passwords_that_a_program_has_told_are_not_in_the_history(
    host: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    step = Step("driver", "packages.install", "driver 580", "")
    Journal(host).note("started", step, "plan", policy="policy")
    Journal(host).note("failed", step, "plan", error="https://user:%s@mirror failed" % SECRET)
    for words in (("history",), ("history", "--json")):
        called(host, *words)
        assert SECRET not in capsys.readouterr().out


def test_who_interrupts_it_is_told_how_it_goes_on(
    host: Host, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    have(host, first="one\n")
    with monkeypatch.context() as patch:
        patch.setattr(Host, "write", lambda *_words, **_more: (_ for _ in ()).throw(KeyboardInterrupt))
        assert called(host, "apply") == 130
    assert "goes on where this one ended" in capsys.readouterr().err
    assert called(host, "apply") == 0
    assert host.read("/etc/first") == "one\n"


# at a boot


@pytest.fixture
def checks(host: Host, monkeypatch: pytest.MonkeyPatch) -> Dict[str, Any]:
    """What the validation finds, and with what it was asked."""
    found: Dict[str, Any] = {"asked": [], "failure": ""}

    def validate_host(parameters: Mapping[str, Any], check_mode: bool, proves: bool) -> Dict[str, Any]:
        found["asked"].append(dict(parameters))
        found["proves"] = proves
        if found["failure"]:
            raise GpuOpsError("validation.of_a_test", found["failure"], "GPUs that are well", "mend them", checks=[])
        return {"changed": False, "checks": [
            {"name": "compute", "status": "passed", "evidence": "all computed", "remedy": ""}]}

    monkeypatch.setattr(acts, "validate_host", validate_host)
    monkeypatch.setattr(acts, "host_facts", lambda _host: HostFacts(gpus=(Gpu("0000:01:00.0", "2330"),)))
    return found


def told_of_boot(host: Host) -> Dict[str, Any]:
    return boot_record.read(host)


def test_a_boot_brings_the_host_to_its_policy_and_proves_it(
    host: Host, checks: Dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    have(host, first="one\n")
    assert called(host, "boot") == 0
    assert capsys.readouterr().out.splitlines() == [
        "done: first/file.write//etc/first", "passed   compute: all computed", "gpuops: this host may take GPU work"]
    assert (told_of_boot(host)["state"], len(checks["asked"])) == ("validated", 1)
    assert host.mode(boot_record.PATH) == 0o600


def test_a_host_that_is_not_well_fails_the_unit_and_says_why(
    host: Host, checks: Dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    have(host, first="one\n")
    checks["failure"] = "GPU 3 is ill"
    assert called(host, "boot") == 1
    assert "GPU 3 is ill" in capsys.readouterr().err
    assert told_of_boot(host)["state"] == "failed" and "GPU 3 is ill" in told_of_boot(host)["reason"]
    checks["failure"] = ""
    assert called(host, "boot") == 0
    assert told_of_boot(host)["state"] == "validated"


@pytest.fixture
def told(host: Host, monkeypatch: pytest.MonkeyPatch) -> List[Tuple[str, bool, str]]:
    """(kubeconfig, whether it may cordon, state of the boot) each time that a host tells of itself on its Node."""
    found: List[Tuple[str, bool, str]] = []

    def tell(there: Host, kubeconfig: str, stale: float, cordons: bool, *_words: Any) -> Dict[str, Any]:
        found.append((kubeconfig, cordons, told_of_boot(there)["state"]))
        return {"changed": True, "node": "gpu-1", "cordoned": cordons, "conditions": [
            {"type": "GpuSick", "status": "True", "reason": "GpuIsSick", "message": "a GPU is sick"}]}

    monkeypatch.setattr(acts.telling, "tell", tell)
    monkeypatch.setattr(acts, "look_and_keep", lambda *_words: found.append(("looked", False, "")) or State())
    return found


def that_tells(host: Host, condition: str, **texts: str) -> None:
    policy = {name: {"text": text, "password": SECRET} for name, text in texts.items()}
    own = {"node_condition": condition, "kubeconfig": "/etc/own.conf"}
    host.write(POLICY, json.dumps({"schema": 1, "policy": {**policy, "agent": own}}))


def test_a_boot_that_fails_tells_the_cluster_and_one_that_does_not_looks_first(
    host: Host, checks: Dict[str, Any], told: List[Tuple[str, bool, str]]
) -> None:
    that_tells(host, "cordon", first="one\n")
    checks["failure"] = "GPU 3 is ill"
    assert called(host, "boot") == 1 and told == [("/etc/own.conf", True, "failed")]
    checks["failure"] = ""
    assert called(host, "boot") == 0
    assert told[1:] == [("looked", False, ""), ("/etc/own.conf", True, "validated")]


def test_a_boot_of_a_host_that_tells_nothing_asks_nobody(
    host: Host, checks: Dict[str, Any], told: List[Tuple[str, bool, str]]
) -> None:
    have(host, first="one\n")
    assert called(host, "boot") == 0
    checks["failure"] = "GPU 3 is ill"
    assert called(host, "boot") == 1 and told == []


def test_a_cluster_that_is_not_reached_changes_nothing_of_a_boot(
    host: Host, checks: Dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*_words: Any) -> Dict[str, Any]:
        raise GpuOpsError("agent.of_a_test", "no answer", "one", "see")

    monkeypatch.setattr(acts.telling, "tell", silent)
    monkeypatch.setattr(acts, "look_and_keep", lambda *_words: State())
    that_tells(host, "condition", first="one\n")
    assert called(host, "boot") == 0
    assert "the cluster was not told: no answer" in capsys.readouterr().err


def test_a_boot_is_told_in_the_metrics_though_nobody_looks_at_the_gpus(
    host: Host, checks: Dict[str, Any], told: List[Tuple[str, bool, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From its beginning on: the file there is of before the boot. Without the reason's secrets."""
    begun: List[str] = []
    monkeypatch.setattr(acts, "_booted", lambda *words, done=acts._booted: (
        begun.append(host.read(file) or ""), done(*words))[1])
    directory, file = "/var/lib/metrics", "/var/lib/metrics/gpuops_health.prom"
    host.make_directory(directory, 0o755)
    host.write(POLICY, json.dumps({"schema": 1, "policy": {
        "first": {"text": "one\n", "password": SECRET}, "agent": {"health_metrics_directory": directory}}}))
    checks["failure"] = "GPU 3 is ill, says %s" % SECRET
    assert called(host, "boot") == 1 and told == []
    assert 'gpuops_boot_state{state="working"} 1.0' in begun[0] and "gpuops_boot_failure{" not in begun[0]
    text = host.read(file) or ""
    assert 'gpuops_boot_state{state="failed"} 1.0' in text and 'gpuops_boot_failure{reason="' in text
    assert "GPU 3 is ill" in text and SECRET not in text
    checks["failure"] = ""
    assert called(host, "boot") == 0
    text = host.read(file) or ""
    assert 'gpuops_boot_state{state="validated"} 1.0' in text and "gpuops_boot_failure{" not in text


@pytest.mark.parametrize("directory", ["/var/lib/metrics", 7])
def test_metrics_that_cannot_be_written_change_nothing_of_a_boot(
    host: Host, checks: Dict[str, Any], directory: Any
) -> None:
    host.write("/var/lib/metrics", "no directory")
    host.write(POLICY, json.dumps({"schema": 1, "policy": {
        "first": {"text": "one\n"}, "agent": {"health_metrics_directory": directory}}}))
    assert called(host, "boot") == 0 and told_of_boot(host)["state"] == "validated"


class ServerOfOneNode:
    """Takes what is said of a Node."""

    node, url = "gpu-1", "https://api.example"

    def __init__(self) -> None:
        self.said: List[Dict[str, Any]] = []

    def get(self, _path: str) -> Dict[str, Any]:
        return {"metadata": {"name": "gpu-1", "uid": "u", "resourceVersion": "1"}, "spec": {}, "status": {}}

    def patch(self, path: str, body: Dict[str, Any], *_words: Any, **_more: Any) -> Dict[str, Any]:
        self.said.append(body)
        return self.get(path)


def does_not_load(host: Host, checks: Dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> str:
    said = "modprobe: ERROR: could not insert 'nvidia': Exec format error"
    load = Step("first", "file.write", "nvidia", "It is installed.", parameters={
        "argv": ["sh", "-c", 'echo "$1" >&2; exit 1', "sh", said], "timeout": 5})
    broken = replace(CAPABILITIES[0], executors={
        "file.write": lambda there, journal, _step: load_module(there, journal, load)})
    for module in (registry, acts):
        monkeypatch.setattr(module, "CAPABILITIES", (broken,))
    return "module nvidia: the module was built for another kernel"


def is_not_there(host: Host, checks: Dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> str:
    def validate_host(*_words: Any, **_more: Any) -> Dict[str, Any]:
        facts = HostFacts(hostname="gpu1", gpus=(Gpu("0000:01:00.0", "2330"),), driver_installed="580.126.09")
        seen = Evidence(facts, NvmlReading(error="Driver Not Loaded"), (), "", 0, "", "", (), "nvidia", 1)
        raise_if_unhealthy([check for check in run_chain(seen) if check.name == "driver_versions"], "host gpu1")
        return {}

    monkeypatch.setattr(acts, "validate_host", validate_host)
    return "host gpu1 fails driver_versions: loaded none, module on disk 580.126.09"


@pytest.mark.parametrize("breaks", [does_not_load, is_not_there])
def test_a_boot_with_a_broken_driver_takes_the_node_out_and_says_what_is_wrong_with_it(
    host: Host, checks: Dict[str, Any], monkeypatch: pytest.MonkeyPatch, breaks: Any
) -> None:
    """On the Node, by the host alone: where no kubelet runs nobody else could."""
    server = ServerOfOneNode()
    monkeypatch.setattr(acts.telling.api, "conversation", lambda *_words: contextlib.nullcontext(server))
    that_tells(host, "cordon", first="one\n")
    reason = breaks(host, checks, monkeypatch)
    assert called(host, "boot") == 1
    [status] = [body["status"] for body in server.said if "status" in body]
    sick = next(each for each in status["conditions"] if each["type"] == "GpuSick")
    assert (sick["status"], sick["reason"]) == ("True", "GpuHostNotValidated") and reason in sick["message"]
    cordon = next(body for body in server.said if "spec" in body)
    assert cordon["spec"] == {"unschedulable": True}
    assert reason in cordon["metadata"]["annotations"][HEALTH_CORDON]


def test_what_a_boot_tells_of_its_failure_has_no_secret(
    host: Host, checks: Dict[str, Any], told: List[Tuple[str, bool, str]]
) -> None:
    that_tells(host, "condition", first="one\n")
    checks["failure"] = "the word %s was refused" % SECRET
    assert called(host, "boot") == 1
    assert SECRET not in told_of_boot(host)["reason"] and "was refused" in told_of_boot(host)["reason"]


def test_a_host_is_asked_to_tell_of_itself(
    host: Host, told: List[Tuple[str, bool, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    boot_record.begin(host)
    that_tells(host, "condition")
    assert called(host, "node", "--kubeconfig", "/etc/other.conf") == 0
    assert told == [("/etc/other.conf", False, "working")]
    assert capsys.readouterr().out.splitlines() == ["node gpu-1: told", "GpuSick          True     a GPU is sick"]
    that_tells(host, "none")
    assert called(host, "node") == 0 and len(told) == 1


@pytest.mark.parametrize("text", ["failing", "impossible"])
def test_a_host_that_is_not_as_it_should_be_is_not_validated(
    host: Host, checks: Dict[str, Any], capsys: pytest.CaptureFixture[str], text: str
) -> None:
    have(host, first=text)
    assert called(host, "boot") == 1
    assert told_of_boot(host)["state"] == "failed" and checks["asked"] == []


def test_what_a_boot_may_not_do_is_no_half_of_it(
    host: Host, checks: Dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    policy = {"second": {"text": "two\n", "allowed_disruption": "service_restart"}}
    host.write(POLICY, json.dumps({"schema": 1, "policy": policy}))
    failed = result(host, capsys, "boot")
    assert failed["code"] == "gpuops.boot_incomplete" and "second/file.write//etc/second" in failed["found"]
    assert checks["asked"] == []


def test_pods_of_before_the_boot_keep_nothing_away(
    host: Host, checks: Dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "pods_seen", lambda _host: ("default/training",))
    have(host, second="two\n")
    assert called(host, "boot") == 0
    assert host.read("/etc/second") == "two\n"


@pytest.mark.parametrize("installed, planned", [
    ({}, {"driver", "nouveau", "toolkit", "mig"}),
    ({"driver_installed": "580"}, {"toolkit", "mig"}),
    ({"driver_installed": "580", "toolkit": "1.18"}, {"mig"}),
])
def test_a_boot_is_no_upgrade(
    host: Host, monkeypatch: pytest.MonkeyPatch, installed: Dict[str, str], planned: Set[str]
) -> None:
    options = {name: {} for name in ("driver", "nouveau", "toolkit", "activation", "mig")}
    monkeypatch.setattr(acts, "host_facts", lambda _host: HostFacts(**installed))
    assert set(acts._of_boot(host, options)) == {*planned, "activation"}, "what is installed is to be what is loaded"


def test_an_installation_that_was_cut_off_is_brought_to_its_end(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its module may be there long before it is over."""
    monkeypatch.setattr(acts, "host_facts", lambda _host: HostFacts(
        os_id="debian", driver_installed="580", toolkit="1.18"))
    options = {name: {} for name in ("driver", "toolkit", "mig")}
    assert set(acts._of_boot(host, options)) == {"mig"}
    Journal(host).note("started", Step("driver", "packages.install", "driver 580", ""), "plan", policy="policy")
    assert set(acts._of_boot(host, options)) == {"driver", "mig"}
    monkeypatch.setattr(type(APT), "interrupted", lambda _apt, _host: True)
    assert set(acts._of_boot(host, options)) == set(options)


def test_under_pods_that_have_run_since_the_boot_nothing_is_done(
    host: Host, checks: Dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As where systemd was reloaded on a node at work, and its kubelet is started anew: it is not kept from that."""
    started = {"ActiveEnterTimestampMonotonic": "7000000"}
    monkeypatch.setattr(Host, "unit", lambda _host, name: started if name == "kubelet.service" else {})
    host.write(POLICY, json.dumps({"schema": 1, "policy": {
        "first": {"text": "one\n", "password": SECRET}, "agent": {"boot": "hold"}}}))
    assert called(host, "boot") == 0
    assert "nothing was done under its pods" in capsys.readouterr().out
    assert (told_of_boot(host)["state"], host.read("/etc/first"), checks["asked"]) == ("late", None, [])
    # What had failed before goes on to have, as nothing has been validated
    boot_record.end(host, boot_record.begin(host), boot_record.FAILED, "GPU 3 is ill")
    assert called(host, "boot") == 0
    assert (told_of_boot(host)["state"], told_of_boot(host)["reason"]) == ("failed", "GPU 3 is ill")


@pytest.mark.parametrize("mode, kubelet", [
    ("report", "kubelet.service"), ("report", "k3s.service"), ("hold", "k3s.service")])
def test_a_host_whose_kubelet_waits_for_nobody_is_validated_though_that_was_quicker(
    host: Host, checks: Dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], mode: str,
    kubelet: str
) -> None:
    """As it nearly always is."""
    started = {"ActiveEnterTimestampMonotonic": "7000000"}
    monkeypatch.setattr(Host, "unit", lambda _host, name: started if name == kubelet else {})
    host.write(POLICY, json.dumps({"schema": 1, "policy": {
        "first": {"text": "one\n", "password": SECRET}, "agent": {"boot": mode}}}))
    checks["failure"] = "GPU 3 is ill"
    assert called(host, "boot") == 1
    assert (told_of_boot(host)["state"], host.read("/etc/first")) == ("failed", None)
    checks["failure"] = ""
    assert called(host, "boot") == 0
    assert (told_of_boot(host)["state"], host.read("/etc/first")) == ("validated", None)
    assert "this host may take GPU work" in capsys.readouterr().out


def test_gpus_that_have_not_joined_their_fabric_yet_are_waited_for_where_nothing_is_applied(
    host: Host, checks: Dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Host, "unit", lambda _host, _name: {"ActiveEnterTimestampMonotonic": "7000000"})
    monkeypatch.setattr(acts, "RETRY_PAUSE_SECONDS", 0.01)
    asked: List[str] = []

    def validate_host(*_words: Any, **_more: Any) -> Dict[str, Any]:
        asked.append("asked")
        failed = ["fabric", "gpus_answer"][len(asked) // 3]
        raise GpuOpsError("validation.of_a_test", failed, "one", "see", checks=[{
            "name": failed, "status": "failed", "evidence": failed, "remedy": ""}])

    monkeypatch.setattr(acts, "validate_host", validate_host)
    host.write(POLICY, json.dumps({"schema": 1, "policy": {"agent": {"boot": "report"}}}))
    assert called(host, "boot", "--retry-seconds", "60") == 1
    assert len(asked) == 3 and "gpus_answer" in told_of_boot(host)["reason"]


@pytest.mark.parametrize("wanted, asked, proves", [
    ("standard", (), True), ("standard", ("--compute", "long"), True), ("none", (), True),
    ("standard", ("--compute", "none"), False), ("standard", ("--compute", "quick"), False)])
def test_a_slighter_look_than_the_policy_wants_proves_nothing(
    host: Host, checks: Dict[str, Any], wanted: str, asked: Tuple[str, ...], proves: bool
) -> None:
    host.write(POLICY, json.dumps({"schema": 1, "policy": {"validation": {"compute": wanted}}}))
    assert called(host, "validate", *asked) == 0
    assert checks["proves"] is proves


def test_packages_that_cannot_be_had_yet_are_asked_for_again(
    host: Host, checks: Dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failures = [GpuOpsError("packages.no_mirror", "https://u:%s@mirror is silent" % SECRET, "a mirror", "wait")] * 2
    apply = acts.apply

    def late(*words: Any, **more: Any) -> Dict[str, Any]:
        if failures:
            raise failures.pop()
        return apply(*words, **more)

    monkeypatch.setattr(acts, "apply", late)
    monkeypatch.setattr(acts, "RETRY_PAUSE_SECONDS", 0.01)
    have(host, first="one\n")
    assert called(host, "boot", "--retry-seconds", "60") == 0
    told = capsys.readouterr()
    assert told.err.count("tried again in") == 2 and SECRET not in told.out + told.err
    failures.append(GpuOpsError("packages.no_mirror", "still silent", "a mirror", "wait"))
    assert called(host, "boot") == 1


@pytest.mark.parametrize("failed, code, state", [(True, 1, "failed"), (False, 0, "late")])
def test_nothing_is_done_under_pods_that_have_come_meanwhile(
    host: Host, checks: Dict[str, Any], monkeypatch: pytest.MonkeyPatch, failed: bool, code: int, state: str
) -> None:
    """Where a boot is only reported, the kubelet does not wait for it: while packages are asked for once more, or
    while another run is waited for."""
    def comes() -> None:
        monkeypatch.setattr(Host, "unit", lambda _host, _name: {"ActiveEnterTimestampMonotonic": "7000000"})

    def no_mirror(*_words: Any, **_more: Any) -> Dict[str, Any]:
        comes()
        raise GpuOpsError("packages.no_mirror", "the mirror is silent", "a mirror", "wait")

    if failed:
        monkeypatch.setattr(acts, "_planned", no_mirror)
    monkeypatch.setattr(acts, "RETRY_PAUSE_SECONDS", 0.01)
    held = HostLock.held

    def waiting(lock: HostLock, timeout: float) -> Any:
        if not failed:
            comes()
        return held(lock, timeout)

    monkeypatch.setattr(HostLock, "held", waiting)
    have(host, first="one\n")
    assert called(host, "boot", "--retry-seconds", "60") == code
    assert told_of_boot(host)["state"] == state and ("no_mirror" in told_of_boot(host)["reason"]) is failed
    assert host.read("/etc/first") is None and checks["asked"] == []


@pytest.mark.parametrize("text, code", [
    (None, "gpuops.no_policy"), ("{", "agent.policy_unreadable"),
    ('{"schema": 1, "policy": {"container_runtime": {}}}', "gpuops.policy_not_understood"),
    ('{"schema": 1, "policy": {"first": "580"}}', "gpuops.policy_not_understood"),
])
def test_a_policy_that_cannot_be_followed_is_what_became_of_the_boot(
    host: Host, checks: Dict[str, Any], capsys: pytest.CaptureFixture[str], text: Optional[str], code: str
) -> None:
    if text is not None:
        host.write(POLICY, text)
    assert called(host, "boot") == 1
    assert "[%s]" % code in capsys.readouterr().err
    assert told_of_boot(host)["state"] == "failed" and code in told_of_boot(host)["reason"]


@pytest.mark.parametrize("facts, expected, is_none", [
    ({}, None, True), ({}, 8, False), ({"driver_installed": "580"}, None, False)])
def test_a_machine_without_a_gpu_is_told_from_one_that_has_lost_it(
    host: Host, checks: Dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    facts: Dict[str, str], expected: Optional[int], is_none: bool
) -> None:
    monkeypatch.setattr(acts, "host_facts", lambda _host: HostFacts(**facts))
    host.write(POLICY, json.dumps({"schema": 1, "policy": {"validation": {"expected_gpus": expected}}}))
    assert called(host, "boot") == 0
    assert (told_of_boot(host)["state"] == "no_gpus") is is_none
    assert (checks["asked"] == []) is is_none


def test_what_was_cut_off_is_told_from_what_has_ended(host: Host, checks: Dict[str, Any]) -> None:
    boot_record.begin(host)
    assert (told_of_boot(host)["state"], told_of_boot(host)["until"]) == ("working", None)


def test_a_boot_that_has_failed_says_nothing_of_a_host_that_was_validated_since(host: Host) -> None:
    boot_record.settle(host)
    assert boot_record.read(host) == {}
    boot_record.end(host, boot_record.begin(host), boot_record.FAILED, "GPU 3 is ill")
    boot_record.settle(host)
    assert boot_record.read(host)["state"] == "validated"
    boot_record.begin(host)
    boot_record.settle(host)
    assert boot_record.read(host)["state"] == "working"


def test_a_boot_that_was_ended_in_the_middle_has_failed_until_the_host_is_validated(host: Host) -> None:
    """Whoever has called it: a unit whose time is over, or a person."""
    boot_record.begin(host)
    record = json.loads(host.read(boot_record.PATH) or "")
    record["process"][1] = "1"
    host.write(boot_record.PATH, json.dumps(record))
    found = boot_record.read(host)
    assert found["state"] == "failed" and "ended before it was done" in found["reason"]
    boot_record.settle(host)
    assert boot_record.read(host)["state"] == "validated"


def test_of_two_that_were_started_the_last_one_has_the_last_word(host: Host, checks: Dict[str, Any]) -> None:
    """By the unit, and by a person beside it: what is at work is not over."""
    since = boot_record.begin(host)
    record = json.loads(host.read(boot_record.PATH) or "")
    record["process"] = [1, host.process_started(1)]
    host.write(boot_record.PATH, json.dumps(record))
    boot_record.end(host, since, boot_record.VALIDATED, "")
    assert told_of_boot(host)["state"] == "working"
    boot_record.end(host, boot_record.begin(host), boot_record.VALIDATED, "")
    assert told_of_boot(host)["state"] == "validated"


def test_a_validation_that_ends_as_a_boot_begins_does_not_end_it(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot_record.end(host, boot_record.begin(host), boot_record.FAILED, "GPU 3 is ill")
    read, began = boot_record.read, []

    def read_and_begin(there: Host) -> Dict[str, Any]:
        found = read(there)
        with there.occupied(boot_record.GUARD, "") as can_come_between:
            pass
        if can_come_between and not began:
            began.append(boot_record.begin(there))
        return found

    monkeypatch.setattr(boot_record, "read", read_and_begin)
    boot_record.settle(host)
    assert began == [] and read(host)["state"] == "validated"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 2}'])
def test_a_record_of_another_release_tells_nothing(host: Host, text: str) -> None:
    host.write(boot_record.PATH, text)
    assert told_of_boot(host) == {}


def test_a_full_run_is_no_reason_to_leave_the_host_as_it_is(
    host: Host, checks: Dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    have(host, first="one\n")
    write = Host.write

    def full(self: Host, name: str, *words: Any, **more: Any) -> None:
        if name == boot_record.PATH:
            raise HostFailed("host.no_space", "full", "space", "free some")
        write(self, name, *words, **more)

    monkeypatch.setattr(Host, "write", full)
    assert called(host, "boot") == 0
    assert host.read("/etc/first") == "one\n"


# health


@pytest.fixture
def sick(host: Host, monkeypatch: pytest.MonkeyPatch) -> Finding:
    """What every look at the host finds, and has the kept state have."""
    finding = Finding(Subject("gpu", "GPU-1", "", "0000:3b:00.0"), "kernel_log", "xid 54", "sick", "out", "power cable",
                      Moment(1767225600.0, "boot"), Moment(1767225600.0, "boot"))
    state = State(rounds=1, at=1767225600.0, findings={finding.key: finding})
    host.write(health_state.KEPT, json.dumps(state.to_dict()))
    monkeypatch.setattr(acts, "look_and_keep", lambda _host, _policy, _directory: health_state.kept(host))
    have(host, first="one\n")
    return finding


def test_what_is_wrong_is_told_with_what_mends_it(
    host: Host, sick: Finding, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called(host, "health") == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith("sick; to do: ") and "gpu GPU-1: xid 54: power cable (1 times, since " in told[1]
    found = result(host, capsys, "health")
    assert (found["verdict"], found["remedy"], found["findings"][0]["key"]) == ("sick", "out", sick.key)


def test_a_person_takes_back_what_a_part_has_that_was_replaced(
    host: Host, sick: Finding, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called(host, "release", "gpu GPU-7") == 1
    assert "[health.nothing_to_release]" in capsys.readouterr().err
    done = result(host, capsys, "release", sick.key)
    assert (done["changed"], done["findings"], len(done["history"])) == (True, [], 1)
    assert health_state.kept(host).findings == {}


def test_health_is_judged_by_the_policy_of_the_host(
    host: Host, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: List[Any] = []
    monkeypatch.setattr(acts, "look_and_keep", lambda _host, *words: seen.extend(words) or State())
    own = {"health": {"rounds": 7}, "health_metrics_directory": "/var/lib/node_exporter"}
    host.write(POLICY, json.dumps({"schema": 1, "policy": {"agent": own}}))
    assert called(host, "health") == 0
    assert (seen[0].rounds, seen[1]) == (7, "/var/lib/node_exporter")
