# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The configuration as CRI-O reads it, and the file that brings the handler."""
from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime import policy, toml
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.backends.crio import configuration, daemon, writer

PACKAGED = (
    "[crio.runtime]\ndefault_runtime = \"crun\"\n[crio.runtime.runtimes.crun]\n"
    "runtime_path = \"/usr/libexec/crio/crun\"\nruntime_root = \"/run/crun\"\n"
    "monitor_path = \"/usr/libexec/crio/conmon\"\nallowed_annotations = [\"io.containers.trace-syscall\"]\n"
    "[crio.runtime.runtimes.runc]\nruntime_path = \"/usr/libexec/crio/runc\"\nruntime_root = \"/run/runc\"\n"
    "monitor_path = \"/usr/libexec/crio/conmon\"\nmonitor_env = [\"PATH=/usr/bin\"]\n"
)


STARTED = daemon.started_as(["/usr/bin/crio"], {}, "/")
PROGRAM = "/usr/bin/nvidia-container-runtime"


def conf(tmp_path: Path, started: daemon.Daemon = STARTED, **files: str) -> configuration.Configuration:
    """Files by name, '__' for '.', 'd_' in front of those of the directory."""
    for name, text in files.items():
        name = name.replace("__", ".")
        path = tmp_path / "etc/crio" / ("crio.conf.d/" + name[2:] if name.startswith("d_") else name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return configuration.load(Host(str(tmp_path)), daemon=started)


def policy_with(**changes: Any) -> policy.Policy:
    parameters = {name: option.get("default") for name, option in policy.ARGUMENTS.items()}
    return policy.policy_of(dict(parameters, **changes))


def handler(path: str, name: str = "nvidia", **more: str) -> str:
    values = dict(more, runtime_path=path)
    return "[crio.runtime.runtimes.%s]\n" % name + "".join("%s = '%s'\n" % pair for pair in values.items())


def written(config: configuration.Configuration, **changes: Any) -> Dict[str, Any]:
    text = writer.wanted_text(config, policy_with(**changes), {})
    return toml.parse("ours", text)["crio"]["runtime"] if text else {}


def test_every_file_counts_in_lexical_order_whatever_it_is_called(tmp_path: Path) -> None:
    config = conf(tmp_path, crio__conf="[crio.runtime]\ndefault_runtime = 'runc'\n", d_10__conf=handler("/a"),
                  d_20__toml=handler("/b"), **{"d_20__toml__~": handler("/c")})
    assert [file.path.rsplit("/", 1)[-1] for file in config.files] == ["crio.conf", "10.conf", "20.toml", "20.toml.~"]
    assert config.handlers()["nvidia"] == {"runtime_path": "/c"}
    assert config.source_of("nvidia").endswith("20.toml.~")
    assert config.runtime()["default_runtime"] == "runc"


def test_an_entry_is_replaced_whole(tmp_path: Path) -> None:
    config = conf(tmp_path, d_10__conf=handler("/a", monitor_path="/m"), d_20__conf=handler("/b"))
    assert config.handlers()["nvidia"] == {"runtime_path": "/b"}


def test_a_virtual_machines_runtime_hands_nothing_on(tmp_path: Path) -> None:
    config = conf(tmp_path, d_10__conf=handler("/kata", "runc", runtime_type="vm", runtime_root="/vc"))
    assert written(config)["runtimes"]["nvidia"] == {
        "runtime_path": "/usr/bin/nvidia-container-runtime", "runtime_type": "oci"}


@pytest.mark.parametrize("default_handler", [False, True])
def test_written_twice_is_written_once(tmp_path: Path, default_handler: bool) -> None:
    config = conf(tmp_path, d_10__conf=PACKAGED)
    text = writer.wanted_text(config, policy_with(default_handler=default_handler), {})
    there = config.but({writer.DROP_IN: text})
    assert writer.wanted_text(there, policy_with(default_handler=default_handler), {}) == text
    assert writer.without_ours(there) == config


def with_monitor(tmp_path: Path) -> None:
    """conmon where the daemon looks for programs."""
    path = tmp_path / "usr/bin/conmon"
    path.parent.mkdir(parents=True)
    path.write_text("")
    path.chmod(0o755)


def test_what_others_say_already_is_not_said_again(tmp_path: Path) -> None:
    with_monitor(tmp_path)
    config = conf(tmp_path, **{"d_99-nvidia__toml": handler(PROGRAM)})
    assert config.monitor == "/usr/bin/conmon"
    assert writer.wanted_text(config, policy_with(), {}) is None
    assert writer.conflict(config, policy_with()) == ("", "")


def test_the_low_level_runtimes_are_the_absolute_paths_of_the_service(tmp_path: Path) -> None:
    config = conf(tmp_path, d_10__conf=PACKAGED, d_20__conf=handler("/usr/bin/nvidia-container-runtime"))
    assert configuration.low_level_runtimes(config) == ("/usr/libexec/crio/crun", "/usr/libexec/crio/runc")


@pytest.mark.parametrize(("monitor", "told"), [
    ("/opt/conmon", "/opt/conmon"), ("tools/conmon", "/srv/tools/conmon"), ("../conmon", "/conmon"),
    ("conmon", "/usr/bin/conmon"), ("", None),
])
def test_the_monitor_comes_by_its_absolute_path(tmp_path: Path, monitor: str, told: Any) -> None:
    with_monitor(tmp_path)
    started = daemon.started_as(["crio"], {"PATH": "/bin:/usr/bin", "A": "b"}, "/srv")
    config = conf(tmp_path, started, d_10__conf=handler("/usr/bin/runc", "runc", monitor_path=monitor))
    assert written(config)["runtimes"]["nvidia"].get("monitor_path") == told


def test_without_a_runc_the_monitor_of_another_handler_serves(tmp_path: Path) -> None:
    config = conf(tmp_path, d_10__conf=handler("/kata", "kata", runtime_type="vm", monitor_path="/no")
                  + handler("/opt/youki", "youki", monitor_path="/opt/conmon"))
    assert written(config)["runtimes"]["nvidia"]["monitor_path"] == "/opt/conmon"


def test_default_annotations_come_along(tmp_path: Path) -> None:
    config = conf(tmp_path, d_10__conf=handler("/usr/bin/runc", "runc")
                  + "[crio.runtime.runtimes.runc.default_annotations]\n\"io.x/y\" = 'z'\n")
    assert written(config)["runtimes"]["nvidia"]["default_annotations"] == {"io.x/y": "z"}


def test_relative_low_level_runtimes_belong_to_the_daemons_directory(tmp_path: Path) -> None:
    config = conf(tmp_path, daemon.started_as(["crio"], {}, "/srv"), d_10__conf=handler("bin/runc", "runc"))
    assert configuration.low_level_runtimes(config) == ("/srv/bin/runc",)


@pytest.mark.parametrize(("words", "environment", "options"), [
    (["crio"], {}, {}),
    (["crio", "--log-level", "debug", "-c", "/a", "--config-dir=/b"], {}, {"config": ("/a",), "config-dir": ("/b",)}),
    (["crio", "-default-runtime", "crun"], {"CONTAINER_DEFAULT_RUNTIME": "x"}, {"default-runtime": ("crun",)}),
    (["crio"], {"CONTAINER_CONFIG_DIR": "/c", "CONTAINER_CONMON": ""}, {"config-dir": ("/c",)}),
    (["crio", "--runtimes", "a:/a:/run/a", "--runtimes=b:/b:/run/b:vm"], {},
     {"runtimes": ("a:/a:/run/a", "b:/b:/run/b:vm")}),
])
def test_options_of_the_daemon(words: List[str], environment: Dict[str, str], options: Dict[str, Any]) -> None:
    assert daemon.started_as(words, environment, "/").options == options


def test_the_command_line_overrules_every_file(tmp_path: Path) -> None:
    started = daemon.started_as(
        ["crio", "--runtimes", "nvidia:/opt/x:/run/x,kata:/k:/run/k:vm", "--default-runtime=kata"], {}, "/")
    config = conf(tmp_path, started, d_10__conf=PACKAGED, d_99__conf=handler("/b"))
    assert config.handlers()["nvidia"] == {"runtime_path": "/opt/x", "runtime_root": "/run/x"}
    assert config.handlers()["kata"]["runtime_type"] == "vm"
    assert config.runtime()["default_runtime"] == "kata"
    assert writer.conflict(config, policy_with(adopt=True)) == (
        configuration.COMMAND_LINE, "the handler 'nvidia' with runtime_path = \"/opt/x\"")
    config = conf(tmp_path, daemon.started_as(["crio", "--default-runtime", "crun"], {}, "/"))
    assert writer.conflict(config, policy_with(default_handler=True, adopt=True))[0] == configuration.COMMAND_LINE
    assert started.overrides() == ["--default-runtime=kata", "--runtimes=nvidia:/opt/x:/run/x,kata:/k:/run/k:vm"]


def test_garbage_is_named_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(GpuOpsError) as caught:
        conf(tmp_path, d_50__orig="[crio]\n[broken\n")
    assert "crio.conf.d/50.orig:2: " in caught.value.found
    assert "crio config" in caught.value.remedy


# random configurations

names = st.sampled_from([
    "crio.conf", "crio.conf.d/10-crio.conf", "crio.conf.d/50-site.conf", "crio.conf.d/99-nvidia.toml",
    "crio.conf.d/99-nvidia.conf", "crio.conf.d/99-nvidia.toml.~", "crio.conf.d/sub/a.conf",
])
comments = st.sampled_from(["", "# ask first\n", "  # [crio.runtime]\n", "\n"])
handlers = st.sampled_from([
    handler("/usr/libexec/crio/runc", "runc", monitor_path="/usr/libexec/crio/conmon"),
    handler("/usr/libexec/crio/crun", "crun", runtime_root="/run/crun") + "monitor_env = [ # why\n  'A=b',\n]\n",
    handler("/opt/kata", "kata", runtime_type="vm"),
    handler(PROGRAM), handler("/opt/other"), handler("/opt/other", runtime_type="vm"),
    "[crio.runtime.runtimes]\nyouki = { runtime_path = '/opt/youki' } # inline\n",
])
settings_of = st.sampled_from([
    "", "[crio.runtime]\ndefault_runtime = 'crun'\n", "[crio.network]\nplugin_dirs = ['/x']\n",
    "[crio.runtime]\ndefault_runtime = \"nvidia\" # theirs\n", "[crio]\nlog_dir = '/y'",
])


@st.composite
def directories(draw: Any) -> configuration.Configuration:
    files = []
    for name in sorted(draw(st.lists(names, unique=True)), key=lambda name: name.split("/")):
        entries = draw(st.lists(handlers, max_size=3, unique_by=lambda text: text.split("\n")[0].split(".")[-1]))
        if any(entry.startswith("[crio.runtime.runtimes]") for entry in entries):
            entries = entries[:1]
        text = draw(comments) + "".join(entry + draw(comments) for entry in entries) + draw(settings_of)
        path = "/etc/crio/" + name
        files.append(configuration.File(path, text, toml.parse(path, text)))
    return configuration.Configuration(configuration.ROOT, configuration.DIRECTORY, tuple(files), STARTED,
                                       draw(st.sampled_from(["", "/usr/bin/conmon"])))


wishes = st.builds(policy_with, adopt=st.booleans(), default_handler=st.booleans(),
                   handlers=st.sampled_from([{}, {"nvidia-cdi": ""}]))


@settings(max_examples=150, deadline=None)
@given(directories(), wishes)
def test_applied_and_removed_gives_the_bytes_back(before: configuration.Configuration, wanted: Any) -> None:
    after = before.but(writer.wanted(before, wanted, {}))
    assert [file for file in before.files if file not in after.files] == []
    assert len(after.files) <= len(before.files) + 1
    assert after.but(writer.wanted(after, policy_with(state="absent"), {})) == before


@settings(max_examples=150, deadline=None)
@given(directories(), wishes)
def test_applied_twice_is_applied_once_and_in_effect(before: configuration.Configuration, wanted: Any) -> None:
    texts = writer.wanted(before, wanted, {})
    after = before.but(texts)
    assert writer.wanted(after, wanted, {}) == texts
    if writer.conflict(before, wanted) == ("", ""):
        assert writer.conflict(after, wanted) == ("", "")
        for name, program in wanted.entries.items():
            assert writer.difference_from(after.handlers()[name], program, after) in (
                "", "no monitor_path, although conmon is in no directory of CRI-O's PATH: it would not start again")
        assert not wanted.default_handler or after.runtime()["default_runtime"] == "nvidia"
        others = {name: entry for name, entry in after.handlers().items() if name not in wanted.entries}
        assert others == {name: entry for name, entry in before.handlers().items() if name not in wanted.entries}


@settings(max_examples=150, deadline=None)
@given(directories(), wishes)
def test_another_hand_in_our_file_or_after_it_is_seen(before: configuration.Configuration, wanted: Any) -> None:
    texts = writer.wanted(before, wanted, {})
    after = before.but(texts)
    for path, text in texts.items():
        if text is not None:
            edited = after.but({path: text + "# by hand\n"})
            assert writer.wanted(edited, wanted, {})[path] == text
    last = after.but({configuration.DIRECTORY + "/zzzz-other.toml": handler("/opt/third")})
    assert writer.conflict(last, wanted)[0] != ""
