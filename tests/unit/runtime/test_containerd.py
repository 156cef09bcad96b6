# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The configuration as containerd reads it, and the edits that bring the handler."""
from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import pytest
from made_edits import work_out

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Disruption
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.refusal import Refusal
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime import model, planner, policy, toml
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.backends.containerd import configuration, writer
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.backends.containerd.backend import Containerd

ROOT = "/etc/containerd/config.toml"
CRI2 = 'plugins."io.containerd.grpc.v1.cri"'
CRI3 = "plugins.'io.containerd.cri.v1.runtime'"
RUNC = "[%s.containerd.runtimes.runc]\nruntime_type = 'io.containerd.runc.v2'\n" \
       "[%s.containerd.runtimes.runc.options]\nsystemdCgroup = true\nBinaryName = '/usr/local/bin/runc'\n"


def policy_with(**changes: Any) -> policy.Policy:
    parameters = {name: option.get("default") for name, option in policy.ARGUMENTS.items()}
    return policy.policy_of(dict(parameters, **changes))


def files(tmp_path: Path, texts: Dict[str, str], major: int) -> configuration.Configuration:
    for name, text in texts.items():
        target = tmp_path / name.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return configuration.load(Host(str(tmp_path)), ROOT, major)


def edits(
    config: configuration.Configuration, release: Tuple[int, int], ours: Optional[str] = None, systemd: bool = False,
    **changes: Any
) -> Dict[str, Optional[str]]:
    made = writer.present_edits(config, ours, ROOT, policy_with(**changes), release, systemd)
    return {edit.path: edit.after for edit in made}


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


class TestEdits:
    def test_2_x_gets_a_file_of_ours_with_the_version_and_plugin_of_the_root(self, tmp_path: Path) -> None:
        made = edits(files(tmp_path, {ROOT: "version = 3\n" + RUNC % (CRI3, CRI3)}, 2), (2, 2))
        ours = toml.parse("", made[writer.DROP_IN] or "")
        assert ours["version"] == 3
        assert ours["plugins"][configuration.CRI3]["containerd"]["runtimes"] == {"nvidia": {
            "runtime_type": "io.containerd.runc.v2",
            "options": {"SystemdCgroup": True, "BinaryName": "/usr/bin/nvidia-container-runtime"},
        }}
        assert toml.parse("", made[ROOT] or "")["imports"] == [writer.DROP_IN_IMPORT]

    def test_a_root_that_imports_the_directory_stays_as_it_is(self, tmp_path: Path) -> None:
        config = files(tmp_path, {ROOT: "version = 2\nimports = ['conf.d/*.toml']\n"}, 2)
        assert list(edits(config, (2, 0))) == [writer.DROP_IN]

    def test_1_x_gets_marked_lines_and_keeps_the_built_in_runc(self, tmp_path: Path) -> None:
        text = "version = 2\n[%s]\n  sandbox_image = 'p' # pinned\n" % CRI2
        made = edits(files(tmp_path, {ROOT: text}, 1), (1, 7))
        assert list(made) == [ROOT]
        assert "sandbox_image = 'p' # pinned" in (made[ROOT] or "")
        section = toml.parse("", made[ROOT] or "")["plugins"][configuration.CRI2]
        assert section["enable_cdi"] is True
        assert sorted(section["containerd"]["runtimes"]) == ["nvidia", "runc"]

    def test_1_x_changes_the_last_file_with_the_section(self, tmp_path: Path) -> None:
        config = files(tmp_path, {
            ROOT: "version = 2\nimports = ['/opt/*.toml']\n[%s]\nsandbox_image = 'p'\n" % CRI2,
            "/opt/a.toml": "version = 2\n" + RUNC % (CRI2, CRI2),
            "/opt/b.toml": "version = 2\n[debug]\nlevel = 'info'\n",
        }, 1)
        made = edits(config, (1, 6))
        assert list(made) == ["/opt/a.toml"]
        section = toml.parse("", made["/opt/a.toml"] or "")["plugins"][configuration.CRI2]
        assert configuration.handlers(section)["nvidia"]["options"]["SystemdCgroup"] is True

    def test_1_6_hands_annotations_on_because_it_injects_no_devices(self, tmp_path: Path) -> None:
        config = files(tmp_path, {ROOT: "version = 2\n"}, 1)
        assert "container_annotations" in (edits(config, (1, 6))[ROOT] or "")
        assert "container_annotations" not in (edits(config, (1, 7))[ROOT] or "")

    def test_no_file_at_all(self, tmp_path: Path) -> None:
        old = edits(files(tmp_path, {}, 1), (1, 6), systemd=True)
        assert toml.parse("", old[ROOT] or "")["version"] == 2
        assert "SystemdCgroup = true" in (old[ROOT] or "")
        new = edits(files(tmp_path, {}, 2), (2, 1))
        assert toml.parse("", new[ROOT] or "") == {"version": 3, "imports": [writer.DROP_IN_IMPORT]}

    def test_the_former_default_comes_back(self, tmp_path: Path) -> None:
        text = "version = 2\n[%s.containerd]\ndefault_runtime_name = 'crun' # site\n%s" % (CRI2, RUNC % (CRI2, CRI2))
        config = files(tmp_path, {ROOT: text}, 1)
        made = edits(config, (1, 7), default_handler=True)
        changed = files(tmp_path, {ROOT: made[ROOT] or ""}, 1)
        assert changed.cri()["containerd"]["default_runtime_name"] == "nvidia"
        assert edits(changed, (1, 7), default_handler=True) == {}
        assert {edit.path: edit.after for edit in writer.absent_edits(changed, None)} == {ROOT: text}

    def test_an_upgrade_from_1_x_moves_our_lines_into_our_file(self, tmp_path: Path) -> None:
        text = "version = 2\n" + RUNC % (CRI2, CRI2)
        old = edits(files(tmp_path, {ROOT: text}, 1), (1, 7))[ROOT] or ""
        made = edits(files(tmp_path, {ROOT: old}, 2), (2, 2))
        assert "nvidia" in (made[writer.DROP_IN] or "")
        assert "runtimes.nvidia" not in (made[ROOT] or "")

    def test_inline_tables_are_refused_instead_of_broken(self, tmp_path: Path) -> None:
        text = "version = 2\nplugins = { \"io.containerd.grpc.v1.cri\" = { sandbox_image = 'p' } }\n"
        with pytest.raises(writer.CannotExtend):
            edits(files(tmp_path, {ROOT: text}, 1), (1, 7))

    @pytest.mark.parametrize(("entry", "told"), [
        ({"runtime_type": "io.containerd.runc.v2", "options": {"binaryName": "/usr/bin/nvidia-container-runtime"}}, ""),
        ({"runtime_type": "io.containerd.runc.v2", "options": {"BinaryName": "/opt/x"}}, 'BinaryName = "/opt/x"'),
        ({"runtime_type": "io.containerd.kata.v2", "options": {"BinaryName": "/usr/bin/nvidia-container-runtime"}},
         'runtime_type = "io.containerd.kata.v2"'),
    ])
    def test_a_foreign_handler_is_the_same_or_named(self, entry: Dict[str, Any], told: str) -> None:
        assert writer.difference_from(entry, policy_with().handler_binary) == told


class TestObstacles:
    SERVICE = model.Service(
        "containerd", "", "containerd.service", True, 1, 0.0, "/usr/bin/containerd", (2, 2), ROOT, "/run/c.sock")

    def found(self, tmp_path: Path) -> str:
        host = Host(str(tmp_path))
        planned = work_out(Containerd(), host, Journal(host), policy_with(), self.SERVICE)
        assert planned.refusal is not None
        assert planned.edits == ()
        return str(planned.refusal.found)

    def test_a_disabled_plugin_is_named_with_its_file(self, tmp_path: Path) -> None:
        files(tmp_path, {ROOT: "version = 2\nimports = ['/opt/a.toml']\n",
                         "/opt/a.toml": "version = 2\ndisabled_plugins = ['cri']\n"}, 2)
        assert self.found(tmp_path) == "/opt/a.toml:2: disabled_plugins names cri"

    def test_a_link_into_a_directory_that_others_may_write_to_is_refused(self, tmp_path: Path) -> None:
        files(tmp_path, {"/shared/config.toml": "version = 2\n"}, 2)
        (tmp_path / "etc/containerd").mkdir(parents=True)
        (tmp_path / "etc/containerd/config.toml").symlink_to(tmp_path / "shared/config.toml")
        (tmp_path / "shared").chmod(0o777)
        assert "others than root may write to /shared" in self.found(tmp_path)

    def test_an_old_format_and_a_foreign_handler_are_refused(self, tmp_path: Path) -> None:
        files(tmp_path, {ROOT: "oom_score = 0\n"}, 2)
        assert "format version 1" in self.found(tmp_path)
        entry = "version = 2\n[%s.containerd.runtimes.nvidia.options]\nBinaryName = '/opt/x'\n" % CRI2
        files(tmp_path, {ROOT: entry}, 2)
        assert self.found(tmp_path) == (
            "%s:2 defines the handler 'nvidia' with BinaryName = \"/opt/x\"" % ROOT)

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

    @pytest.mark.parametrize("release", [(1, 7), (2, 2)])
    def test_a_foreign_handler_is_adopted_where_it_stands_and_comes_back(
        self, tmp_path: Path, release: Tuple[int, int]
    ) -> None:
        site = "version = 2\n%s[%s.containerd.runtimes.nvidia.options]\nbinaryName = '/opt/x' # theirs\n" % (
            RUNC % (CRI2, CRI2), CRI2)
        config = files(tmp_path, {ROOT: "version = 2\nimports = ['/opt/a.toml']\n", "/opt/a.toml": site}, release[0])
        made = edits(config, release, adopt=True)
        assert list(made) == ["/opt/a.toml"] if release >= (2, 0) else "/opt/a.toml" in made
        assert "# former: binaryName = '/opt/x' # theirs" in (made["/opt/a.toml"] or "")
        changed = config.but(made)
        assert configuration.handlers(changed.cri())["nvidia"]["options"] == {
            "binaryName": "/usr/bin/nvidia-container-runtime"}
        assert {edit.path: edit.after for edit in writer.absent_edits(changed, None)}["/opt/a.toml"] == site


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

    def test_a_pending_restart_is_planned_without_an_edit(self, tmp_path: Path) -> None:
        made = planner.plan(replace(self.converged(tmp_path), pending=True), policy_with(), self.FACTS)
        assert [step.action for step in made.steps] == ["runtime.restart"]

    def test_a_converged_host_has_nothing_to_do(self, tmp_path: Path) -> None:
        assert planner.plan(self.converged(tmp_path), policy_with(), self.FACTS).steps == ()

    def converged(self, tmp_path: Path) -> model.Observation:
        made = edits(files(tmp_path, {ROOT: "version = 2\n"}, 1), self.SERVICE.release)
        files(tmp_path, {ROOT: made[ROOT] or ""}, 1)
        host = Host(str(tmp_path))
        return Containerd().observe(host, Journal(host), policy_with(), replace(self.SERVICE, started=time.time() + 60))

    def test_what_stands_against_any_change_refuses_before_any_step(self) -> None:
        refusal = Refusal("runtime.any", "found", "wanted", "remedy")
        made = planner.plan(model.Observation(self.SERVICE, (refusal,)), policy_with(), self.FACTS)
        assert (made.steps, made.refusals) == ((), (refusal,))

    def test_without_containerd_only_its_removal_is_done(self) -> None:
        seen = model.Observation(None)
        assert planner.plan(seen, policy_with(), self.FACTS).refusals
        assert not planner.plan(seen, policy_with(state="absent"), self.FACTS).refusals


@pytest.mark.parametrize("changes", [
    {"handler": "runc"}, {"handler": "Nvidia"}, {"handler_binary": "nvidia-container-runtime"},
    {"config_file": "a.toml"},
])
def test_contradictory_options_are_refused(changes: Dict[str, str]) -> None:
    with pytest.raises(GpuOpsError):
        policy_with(**changes)
