# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The configuration as containerd reads it, and the edits that bring the handler."""
from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Disruption
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.refusal import Refusal
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime import model, planner, policy
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.backends.containerd import configuration
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.backends.containerd.backend import Containerd

ROOT = "/etc/containerd/config.toml"
CRI2 = 'plugins."io.containerd.grpc.v1.cri"'


def policy_with(**changes: Any) -> policy.Policy:
    parameters = {name: option.get("default") for name, option in policy.ARGUMENTS.items()}
    return policy.policy_of(dict(parameters, **changes))


def files(tmp_path: Path, texts: Dict[str, str], major: int) -> configuration.Configuration:
    for name, text in texts.items():
        target = tmp_path / name.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return configuration.load(Host(str(tmp_path)), ROOT, major)


class TestConfiguration:
    def test_imports_are_read_breadth_first_and_globs_in_order(self, tmp_path: Path) -> None:
        config = files(tmp_path, {
            ROOT: "version = 2\nimports = ['conf.d/*.toml', '/opt/last.toml', 'missing.toml']\n",
            "/etc/containerd/conf.d/b.toml": "imports = ['/opt/nested.toml']\n",
            "/etc/containerd/conf.d/a.toml": "",
            "/etc/containerd/conf.d/c.txt": "",
            "/opt/last.toml": "", "/opt/nested.toml": "imports = ['/etc/containerd/config.toml']\n",
        }, 2)
        assert [file.path for file in config.files] == [
            ROOT, "/etc/containerd/conf.d/a.toml", "/etc/containerd/conf.d/b.toml", "/opt/last.toml",
            "/opt/nested.toml",
        ]
        assert config.missing == ("/etc/containerd/missing.toml",)

    def test_1_x_replaces_the_section_and_2_x_merges_it(self, tmp_path: Path) -> None:
        texts = {
            ROOT: "version = 2\nimports = ['/opt/a.toml']\n[%s]\nsandbox_image = 'p'\ncdi_spec_dirs = ['/x']\n" % CRI2,
            "/opt/a.toml": "version = 2\n[%s]\ncdi_spec_dirs = ['/y']\n" % CRI2,
        }
        assert files(tmp_path, texts, 1).cri() == {"cdi_spec_dirs": ["/y"]}
        assert files(tmp_path, texts, 2).cri() == {"sandbox_image": "p", "cdi_spec_dirs": ["/y"]}

    @pytest.mark.parametrize(("text", "major", "version", "cri_id"), [
        ("", 1, 0, configuration.CRI2), ("# nothing\n", 2, 0, configuration.CRI3),
        ("oom_score = 0\n", 1, 1, configuration.CRI2), ("version = 2\n", 2, 2, configuration.CRI2),
        ("version = 3\n", 2, 3, configuration.CRI3), ("version = 4\n", 2, 4, configuration.CRI3),
    ])
    def test_the_plugin_is_named_by_the_root_file(
        self, tmp_path: Path, text: str, major: int, version: int, cri_id: str
    ) -> None:
        config = files(tmp_path, {ROOT: text}, major)
        assert (config.version, config.cri_id) == (version, cri_id)

    def test_a_broken_file_is_named_with_its_line(self, tmp_path: Path) -> None:
        with pytest.raises(GpuOpsError) as caught:
            files(tmp_path, {ROOT: "version = 2\n\n[plugins]\nx = \n"}, 2)
        assert caught.value.details == {"file": ROOT, "line": 4}
        assert caught.value.found.startswith(ROOT + ":4: ")


class TestObstacles:
    SERVICE = model.Service(
        "containerd", "", "containerd.service", True, 1, 0.0, "/usr/bin/containerd", (2, 2), ROOT, "/run/c.sock")

    @pytest.mark.parametrize(("release", "formats"), [
        ((1, 6), [2]), ((1, 7), [2]), ((2, 0), [2, 3]), ((2, 2), [2, 3]), ((2, 3), [2, 3, 4]), ((3, 0), [2, 3, 4]),
    ])
    def test_a_release_reads_the_formats_of_its_time(
        self, tmp_path: Path, release: Tuple[int, int], formats: List[int]
    ) -> None:
        host, service = Host(str(tmp_path)), replace(self.SERVICE, release=release)
        read = []
        for version in range(1, 6):
            files(tmp_path, {ROOT: "version = %d\n" % version}, release[0])
            observation = Containerd().observe(host, Journal(host), policy_with(), service)
            refusals = planner.plan(observation, policy_with(), HostFacts()).refusals
            read += [] if refusals else [version]
            assert {refusal.code for refusal in refusals} <= {
                "runtime.containerd_format_1", "runtime.containerd_format_unknown"}
        assert read == formats


class TestPlanner:
    SERVICE = model.Service(
        "containerd", "", "containerd.service", True, 1, 0.0, "/usr/bin/containerd", (1, 6), ROOT, "/run/c.sock")
    FACTS = HostFacts(toolkit="1.20.1")

    def test_the_edit_shows_no_text_of_others_and_the_restart_comes_last(self, tmp_path: Path) -> None:
        files(tmp_path, {ROOT: "version = 2\n[%s]\npassword = 's3cret'\n" % CRI2}, 1)
        host = Host(str(tmp_path))
        seen = Containerd().observe(host, Journal(host), policy_with(), self.SERVICE)
        made = planner.plan(seen, policy_with(), self.FACTS)
        assert [step.action for step in made.steps] == ["runtime_config.edit", "runtime.restart"]
        assert "s3cret" not in str(made.to_dict())
        assert made.steps[1].depends_on == (made.steps[0].id,)
        assert made.disruption is Disruption.runtime_restart

    def test_what_stands_against_any_change_refuses_before_any_step(self) -> None:
        refusal = Refusal("runtime.any", "found", "wanted", "remedy")
        made = planner.plan(model.Observation(self.SERVICE, (refusal,)), policy_with(), self.FACTS)
        assert (made.steps, made.refusals) == ((), (refusal,))


@pytest.mark.parametrize("changes", [
    {"handler": "runc"}, {"handler": "Nvidia"}, {"handler_binary": "nvidia-container-runtime"},
    {"config_file": "a.toml"},
])
def test_contradictory_options_are_refused(changes: Dict[str, str]) -> None:
    with pytest.raises(GpuOpsError):
        policy_with(**changes)
