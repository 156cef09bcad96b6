# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""/etc/nvidia-container-runtime/config.toml: what is in effect, and the same file with other values."""
from __future__ import annotations

import difflib
from typing import Any, Dict, Iterable, Iterator, Mapping, Optional, Tuple

from ..core import libraries
from ..core.errors import GpuOpsError
from ..hardware.driver_container import is_in_container
from . import catalogue

Key = Tuple[str, ...]

# What the toolkit uses for a key that the file does not set (api/config/v1 of NVIDIA/nvidia-container-toolkit)
DEFAULTS: Dict[Key, Any] = {
    ("accept-nvidia-visible-devices-envvar-when-unprivileged",): True,
    ("nvidia-container-runtime", "mode"): "auto",
    ("nvidia-container-runtime", "runtimes"): ["runc", "crun"],
}
RUNTIMES: Key = ("nvidia-container-runtime", "runtimes")
DEBUG: Key = ("nvidia-container-runtime", "debug")
LDCONFIG: Key = ("nvidia-container-cli", "ldconfig")
LDCONFIG_FROM_CONTAINER: Key = ("features", "allow-ldconfig-from-container")

ROOT: Key = ("nvidia-container-cli", "root")
# Where the GPU Operator's container of the toolkit puts its programs, which it leaves there; root, ldconfig and paths
# of programs it sets all together (cmd/nvidia-ctk-installer/toolkit of NVIDIA/nvidia-container-toolkit)
OF_OPERATOR = "/usr/local/nvidia/toolkit/"

# Values that packages wrote: replacing them loses nobody's choice
STOCK_RUNTIMES = (["runc", "crun"], ["docker-runc", "runc", "crun"], ["docker-runc", "runc"])


def read_settings(path: str, text: str) -> Dict[Key, Any]:
    """The values that a file sets, and those in effect of the keys that we manage anyhow.

    Raises GpuOpsError that names the line of a broken file, or the key whose value NVIDIA's runtime refuses.
    """
    data = _parse(path, text).unwrap()
    _refuse_ldconfig_of_containers(path, data)
    given = {}
    for key, value in _leaves(data):
        if any(name.startswith(".".join(key) + ".") for name in catalogue.KEYS):
            raise GpuOpsError("toolkit.configuration_without_table",
                              found="%s: %s = %r" % (path, ".".join(key), value), wanted="a table",
                              remedy="correct it; NVIDIA's runtime would start no container with it")
        if ".".join(key) in catalogue.KEYS:
            given[key] = value
    for key, value in given.items():
        _check_type("%s: %s" % (path, ".".join(key)), ".".join(key), value)
    return {**DEFAULTS, **given}


def unknown_keys(path: str, text: str) -> Tuple[str, ...]:
    """Keys that no program of the toolkit reads."""
    return tuple(".".join(key) for key, _value in _leaves(_parse(path, text).unwrap())
                 if ".".join(key) not in catalogue.KEYS)


def of_containers(settings: Mapping[Key, Any], has_driver: bool) -> Tuple[Key, ...]:
    """Keys whose files are those of the GPU Operator's containers. has_driver: whether the host has a driver of its own
    in the place of a container's."""
    paths = {key: value[1:] if value.startswith("@") else value for key, value in settings.items()
             if isinstance(value, str)}
    return tuple(key for key, path in paths.items()
                 if path.startswith(OF_OPERATOR) or (has_driver and is_in_container(path)))


def wanted_settings(given: Mapping[str, Any]) -> Dict[Key, Any]:
    """An option's values, by dotted keys or by tables. Raises GpuOpsError for what the toolkit does not know."""
    wanted: Dict[Key, Any] = {}
    for key, value in _leaves(given):
        name = ".".join(key)
        if name in catalogue.OPTIONS:
            raise GpuOpsError(
                "toolkit.setting_has_its_own_option",
                found="`settings`: %s" % name, wanted="this value in its own option",
                remedy="set `%s`" % catalogue.OPTIONS[name], option=catalogue.OPTIONS[name])
        if name not in catalogue.KEYS:
            raise GpuOpsError(
                "toolkit.setting_unknown",
                found="`settings`: %s" % name,
                wanted="a key of config.toml that the container toolkit %s knows" % catalogue.DEFAULT_VERSION,
                remedy="use %s; the toolkit ignores keys that it does not know" % _alike(name),
                option="settings")
        _check_type("`settings`: %s" % name, name, value, option="settings")
        wanted[tuple(name.split("."))] = value
    return wanted


def _alike(name: str) -> str:
    alike = difflib.get_close_matches(name, catalogue.KEYS, 3, 0.5) or \
        [key for key in catalogue.KEYS if key.rsplit(".", 1)[-1] == name.rsplit(".", 1)[-1]]
    return " or ".join("'%s'" % key for key in alike or sorted(catalogue.KEYS))


def _leaves(table: Mapping[str, Any], above: Key = ()) -> Iterator[Tuple[Key, Any]]:
    for name, value in table.items():
        key = above + tuple(str(name).split("."))
        if isinstance(value, Mapping) and ".".join(key) not in catalogue.KEYS:
            yield from _leaves(value, key)
        else:
            yield key, value


def _check_type(found: str, name: str, value: Any, option: str = "") -> None:
    wanted = catalogue.KEYS[name]
    members: Iterable[Any] = value if isinstance(value, list) else ()
    if not isinstance(value, wanted) or not all(isinstance(member, str) for member in members):
        raise GpuOpsError(
            "toolkit.setting_of_another_type",
            found="%s = %r" % (found, value),
            wanted={bool: "true or false", str: "a string", list: "a list of strings"}[wanted],
            remedy="correct the value; NVIDIA's runtime would start no container with it",
            option=option,
        )


def with_settings(path: str, text: Optional[str], settings: Mapping[Key, Any]) -> str:
    """The file with these values, None for a key that is to have the toolkit's own; comments, order and everything else
    stay."""
    document = _parse(path, text or "")
    tomlkit = libraries.require("tomlkit")
    for key, value in settings.items():
        table = document
        for part in key[:-1]:
            if part not in table:
                table[part] = tomlkit.table()
            table = table[part]
        if value is None:
            table.pop(key[-1])
        else:
            table[key[-1]] = value
    return str(tomlkit.dumps(document))


def _value(data: Any, key: Key) -> Any:
    for part in key:
        data = data.get(part) if isinstance(data, dict) else None
    return data


def _refuse_ldconfig_of_containers(path: str, data: Any) -> None:
    """nvidia-ctk accepts such a value, and NVIDIA's runtime then starts no container (assertValid in api/config/v1)."""
    ldconfig = _value(data, LDCONFIG)
    if isinstance(ldconfig, str) and not ldconfig.startswith("@") and not _value(data, LDCONFIG_FROM_CONTAINER):
        raise GpuOpsError(
            "toolkit.ldconfig_of_the_container",
            found="%s: nvidia-container-cli.ldconfig = '%s'" % (path, ldconfig),
            wanted="a path on the host, which starts with '@'",
            remedy="write `@%s`, or remove the line" % ldconfig,
            file=path,
        )


def _parse(path: str, text: str) -> Any:
    tomlkit = libraries.require("tomlkit")
    try:
        return tomlkit.parse(text)
    except tomlkit.exceptions.TOMLKitError as error:
        raise GpuOpsError(
            "toolkit.configuration_is_no_toml",
            found="%s%s: %s" % (path, ":%d" % error.line if hasattr(error, "line") else "", error),
            wanted="valid TOML",
            remedy="correct the file by hand; nothing was changed",
            file=path,
            line=getattr(error, "line", None),
        ) from error
