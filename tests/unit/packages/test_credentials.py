# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A password in a repository's URL ends in one file for root alone, and in no plan, journal, result or other file."""
from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, Iterator

import pytest
from scratch_apt import Repository, Root, build

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.capability import plan_of
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import Gpu, HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import SCHEMA
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.secrets import passwords, without_passwords
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver import planner
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.capability import CAPABILITY
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.files import AUTH_FILE
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.observing import observe
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.policy import ARGUMENTS, policy_of
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.apt import credentials
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.model import Credentials

SECRET = "pa55-w0rd%7"
IN_URL = "pa55-w0rd%257"
FACTS = HostFacts(hostname="gpu1", os_id="debian", os_version="12", arch="x86_64", kernel="6.1.0-50-amd64",
                  boot_kernel="6.1.0-50-amd64", gpus=(Gpu("0000:01:00.0", "20b2"),))


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[Repository]:
    with Repository(tmp_path / "closed", password="apt:" + SECRET) as running:
        for name in ("nvidia-kernel-open-dkms", "nvidia-driver-cuda", "nvidia-persistenced", "nvidia-modprobe"):
            build(running.directory, name, "580.178.04-1")
        (running.directory / "key.asc").write_text(running.key.public)
        running.publish()
        yield running


def parameters(closed: Repository, **changes: Any) -> Dict[str, Any]:
    given = {name: option.get("default") for name, option in ARGUMENTS.items()}
    url = closed.url.replace("http://", "http://apt:%s@" % IN_URL)
    given.update(version="580.178.04", kernel_headers=False, repository_url=url, repository_key=url + "key.asc",
                 repository_key_fingerprint=closed.key.fingerprint)
    given.update(changes)
    return given


def leaks(*shown: Any) -> bool:
    text = json.dumps(shown, default=str)
    return SECRET in text or IN_URL in text


def test_only_one_file_has_them(root: Root, closed: Repository) -> None:
    headers = root.path / "lib/modules" / FACTS.kernel / "build"
    headers.mkdir(parents=True)
    (headers / "Makefile").touch()
    (headers.parent / "kernel").mkdir()
    wanted = policy_of(parameters(closed))
    journal = Journal(root.host)
    seen = observe(root.host, journal, wanted, FACTS)
    plan = planner.plan(seen, wanted, FACTS)
    assert not plan.refusals
    steps = {step.subject: step for step in plan.steps if step.action in ("file.write", credentials.WRITE)}
    assert steps[AUTH_FILE].change == {
        "before": None, "after": "machine %s login apt password ********\n" % closed.url}
    assert not leaks(plan.to_dict(), plan.diff(), seen.to_dict(), repr(wanted), repr(seen))
    for step in steps.values():
        journal.note("started", step, "p", policy="p")
        if step.action == credentials.WRITE:
            credentials.executors(wanted)[step.action](root.host, journal, step)
        else:
            root.host.write(step.subject, step.change["after"])
        journal.note("done", step, "p")
    holders = [name for name, data in root.tree().items() if SECRET.encode() in data or IN_URL.encode() in data]
    assert holders == [AUTH_FILE.lstrip("/")]
    assert os.stat(root.path / holders[0]).st_mode & 0o777 == 0o600

    again = planner.plan(observe(root.host, journal, wanted, FACTS), wanted, FACTS)
    assert not any(step.action in ("file.write", credentials.WRITE) and step.subject in steps for step in again.steps)


def test_apt_of_the_host_reads_the_repository_by_that_file(root: Root, closed: Repository) -> None:
    told = Credentials("apt", SECRET)
    root.trust(closed)
    assert root.apt("update", check=False).returncode != 0
    step = credentials.steps("driver", AUTH_FILE, closed.url, told, credentials.AuthFile())[0]
    credentials.writer(told)(root.host, Journal(root.host), step)
    root.apt("update")


def test_another_password_is_a_step_without_it_and_a_wider_mode_is_mended(root: Root) -> None:
    journal, uri = Journal(root.host), "http://mirror/"
    old, new = Credentials("apt", "old-one"), Credentials("apt", "new-one")
    (step,) = credentials.steps("driver", AUTH_FILE, uri, old, credentials.AuthFile())
    credentials.writer(old)(root.host, journal, step)
    seen = credentials.observe(root.host, journal, "driver", AUTH_FILE, uri, new)
    (step,) = credentials.steps("driver", AUTH_FILE, uri, new, seen)
    assert step.change["before"] != step.change["after"] and "-one" not in json.dumps(step.to_dict())
    credentials.writer(new)(root.host, journal, step)
    assert credentials.observe(root.host, journal, "driver", AUTH_FILE, uri, new).current
    (root.path / AUTH_FILE.lstrip("/")).chmod(0o644)
    seen = credentials.observe(root.host, journal, "driver", AUTH_FILE, uri, new)
    assert not seen.current
    credentials.writer(new)(root.host, journal, credentials.steps("driver", AUTH_FILE, uri, new, seen)[0])
    assert credentials.observe(root.host, journal, "driver", AUTH_FILE, uri, new).current


def test_they_go_with_the_policy_and_somebody_elses_file_stays(root: Root) -> None:
    journal, told = Journal(root.host), Credentials("apt", "old-one")
    root.write(AUTH_FILE, "machine http://else/ login a password b\n")
    assert credentials.observe(root.host, journal, "driver", AUTH_FILE, "", None) == credentials.AuthFile(None, True)
    root.host.remove(AUTH_FILE)
    (step,) = credentials.steps("driver", AUTH_FILE, "http://mirror/", told, credentials.AuthFile())
    credentials.writer(told)(root.host, journal, step)
    seen = credentials.observe(root.host, journal, "driver", AUTH_FILE, "http://mirror/", None)
    (step,) = credentials.steps("driver", AUTH_FILE, "http://mirror/", None, seen)
    assert (step.action, step.subject, step.change["after"]) == ("file.restore", AUTH_FILE, None)
    journal.restore(step.subject)
    assert root.host.read(AUTH_FILE) is None


def test_an_approved_step_with_another_policy_is_refused(root: Root) -> None:
    (step,) = credentials.steps("driver", AUTH_FILE, "http://mirror/", Credentials("a", "b"), credentials.AuthFile())
    with pytest.raises(GpuOpsError, match="no credentials for http://mirror/"):
        credentials.writer(None)(root.host, Journal(root.host), step)


def test_the_digest_of_a_policy_does_not_depend_on_them(root: Root, closed: Repository) -> None:
    first, second = (plan_of(CAPABILITY, parameters(closed, state="absent", **changes), root.host, FACTS)[0]
                     for changes in ({}, {"repository_url": closed.url.replace("http://", "http://apt:other@")}))
    assert first.policy == second.policy


@pytest.mark.parametrize("options, found, rest", [
    ({"url": "https://apt:a%40b@h:80/x"}, ["a%40b", "a@b"], {"url": "https://apt:@h:80/x"}),
    ({"driver": {"urls": ["http://u:p@q@h/"]}}, ["p@q", "p@q"], {"driver": {"urls": ["http://u:@h/"]}}),
    ({"url": "http://h:80/a@b", "n": 1}, [], {"url": "http://h:80/a@b", "n": 1}),
])
def test_passwords_among_options(options: Dict[str, Any], found: Any, rest: Any) -> None:
    assert list(passwords(options)) == found
    assert without_passwords(options) == rest


def result_of(module: str, options: Dict[str, Any]) -> Dict[str, Any]:
    """What the real module says, as Ansible runs it, and how it was called."""
    script = ("import sys; sys.path[:0] = %r; from ansible.module_utils import basic; "
              "basic._ANSIBLE_ARGS = sys.stdin.read().encode(); basic._ANSIBLE_PROFILE = 'legacy'; "
              "from ansible_collections.gpuops.nvidia.plugins.modules import %s as module; module.main()"
              % ([path for path in sys.path if path], module))
    told = subprocess.run([sys.executable, "-c", script], input=json.dumps({"ANSIBLE_MODULE_ARGS": options}),
                          capture_output=True, text=True, check=False)
    assert not leaks(told.stdout, told.stderr)
    result: Dict[str, Any] = json.loads(told.stdout)
    return result


@pytest.mark.parametrize("options", [
    {},
    {"lock_timeout": "soon"},
    {"source": "http://apt:%s@127.0.0.1:1/" % IN_URL},
])
def test_a_modules_own_result_has_no_password(options: Dict[str, Any]) -> None:
    """Not even one that ends with the first look at its options."""
    url = "http://apt:%s@127.0.0.1:1/" % IN_URL
    told = result_of("gpu_driver", {"version": "580", "_ansible_check_mode": True, "repository_url": url, **options})
    assert "********" in told["invocation"]["module_args"]["repository_url"]


@pytest.mark.parametrize("form", ["http://%s@127.0.0.1:1/", "http://%s:@127.0.0.1:1/"])
def test_a_token_in_the_place_of_the_user_is_refused_and_not_shown(form: str) -> None:
    told = result_of("gpu_plan", {"driver": {"version": "580", "repository_url": form % IN_URL}})
    assert told["failed"] and "user:password@" in told["wanted"]
    assert "********" in told["invocation"]["module_args"]["driver"]["repository_url"]


def test_a_password_that_is_a_word_of_the_plan_leaves_the_plan_as_it_is() -> None:
    """The plan is what the writers are held to: with a word of it hidden no writer takes it, on a drained node."""
    plans = [result_of("gpu_plan", {"nouveau": {}, "driver": {
        "version": "580", "repository_url": "http://%s:%s@127.0.0.1:1/" % (word, word)}}) for word in ("nvidia", "x1")]
    assert plans[0]["plan"]["schema"] == SCHEMA
    assert [plan["plan"]["steps"] for plan in plans] == [plans[0]["plan"]["steps"]] * 2
    assert plans[0]["invocation"]["module_args"]["driver"]["repository_url"] == "http://nvidia:********@127.0.0.1:1/"
