# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The configuration as CRI-O reads it, and the file that brings the handler."""
from __future__ import annotations

from pathlib import Path
from typing import Any, Dict

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime import policy, toml
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.crio import configuration, writer

PACKAGED = (
    "[crio.runtime]\ndefault_runtime = \"crun\"\n[crio.runtime.runtimes.crun]\n"
    "runtime_path = \"/usr/libexec/crio/crun\"\nruntime_root = \"/run/crun\"\n"
    "monitor_path = \"/usr/libexec/crio/conmon\"\nallowed_annotations = [\"io.containers.trace-syscall\"]\n"
    "[crio.runtime.runtimes.runc]\nruntime_path = \"/usr/libexec/crio/runc\"\nruntime_root = \"/run/runc\"\n"
    "monitor_path = \"/usr/libexec/crio/conmon\"\nmonitor_env = [\"PATH=/usr/bin\"]\n"
)


def conf(tmp_path: Path, **files: str) -> configuration.Configuration:
    """Files by name, '__' for '.', 'd_' in front of those of the folder."""
    for name, text in files.items():
        name = name.replace("__", ".")
        path = tmp_path / "etc/crio" / ("crio.conf.d/" + name[2:] if name.startswith("d_") else name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return configuration.load(Host(str(tmp_path)))


def wish(**changes: Any) -> policy.RuntimePolicy:
    parameters = {name: option.get("default") for name, option in policy.ARGUMENTS.items()}
    return policy.policy_of(dict(parameters, **changes))


def handler(path: str, name: str = "nvidia", **more: str) -> str:
    values = dict(more, runtime_path=path)
    return "[crio.runtime.runtimes.%s]\n" % name + "".join("%s = '%s'\n" % pair for pair in values.items())


def written(config: configuration.Configuration, **changes: Any) -> Dict[str, Any]:
    text = writer.wanted_text(config, wish(**changes), {})
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


def test_the_handler_takes_over_from_runc_of_the_packages(tmp_path: Path) -> None:
    entry = written(conf(tmp_path, **{"d_10-crio__conf": PACKAGED}))["runtimes"]["nvidia"]
    assert entry == {
        "runtime_path": "/usr/bin/nvidia-container-runtime", "runtime_type": "oci", "runtime_root": "/run/runc",
        "monitor_path": "/usr/libexec/crio/conmon", "monitor_env": ["PATH=/usr/bin"],
    }


def test_a_virtual_machines_runtime_hands_nothing_on(tmp_path: Path) -> None:
    config = conf(tmp_path, d_10__conf=handler("/kata", "runc", runtime_type="vm", runtime_root="/vc"))
    assert written(config)["runtimes"]["nvidia"] == {
        "runtime_path": "/usr/bin/nvidia-container-runtime", "runtime_type": "oci"}


def test_the_default_comes_only_when_asked(tmp_path: Path) -> None:
    config = conf(tmp_path, d_10__conf=PACKAGED)
    assert "default_runtime" not in written(config)
    assert written(config, default_handler=True)["default_runtime"] == "nvidia"


@pytest.mark.parametrize("default_handler", [False, True])
def test_written_twice_is_written_once(tmp_path: Path, default_handler: bool) -> None:
    config = conf(tmp_path, d_10__conf=PACKAGED)
    text = writer.wanted_text(config, wish(default_handler=default_handler), {})
    there = config.but({writer.DROP_IN: text})
    assert writer.wanted_text(there, wish(default_handler=default_handler), {}) == text
    assert writer.without_ours(there) == config


def test_what_others_say_already_is_not_said_again(tmp_path: Path) -> None:
    config = conf(tmp_path, **{"d_99-nvidia__toml": handler("/usr/bin/nvidia-container-runtime")})
    assert writer.wanted_text(config, wish(), {}) is None
    assert writer.conflict(config, wish()) == ("", "")


@pytest.mark.parametrize(("text", "told"), [
    (handler("/usr/local/nvidia/toolkit/nvidia-container-runtime"), "/usr/local/nvidia/toolkit"),
    (handler("/usr/bin/nvidia-container-runtime", runtime_type="vm"), "runtime_type"),
    ("[crio.runtime.runtimes.nvidia]\ninherit_default_runtime = true\n", "inherit_default_runtime"),
])
def test_a_differing_leftover_is_named_with_its_file(tmp_path: Path, text: str, told: str) -> None:
    path, what = writer.conflict(conf(tmp_path, **{"d_99-nvidia__conf": text}), wish())
    assert path.endswith("99-nvidia.conf")
    assert told in what


def test_a_default_that_is_read_after_ours_is_named(tmp_path: Path) -> None:
    config = conf(tmp_path, d_zz__bak="[crio.runtime]\ndefault_runtime = 'runc'\n")
    assert writer.conflict(config, wish()) == ("", "")
    assert writer.conflict(config, wish(default_handler=True))[0].endswith("zz.bak")


def test_the_low_level_runtimes_are_the_absolute_paths_of_the_service(tmp_path: Path) -> None:
    config = conf(tmp_path, d_10__conf=PACKAGED, d_20__conf=handler("/usr/bin/nvidia-container-runtime"))
    assert configuration.low_level_runtimes(config) == ("/usr/libexec/crio/crun", "/usr/libexec/crio/runc")


def test_garbage_is_named_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(GpuOpsError) as caught:
        conf(tmp_path, d_50__orig="[crio]\n[broken\n")
    assert "crio.conf.d/50.orig:2: " in caught.value.found
