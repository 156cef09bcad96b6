# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Pure: the files that give containerd a handler for GPUs, with everything else as it was.

containerd 2.x merges plugin sections deeply, so a small file of ours beside the root is enough. 1.x replaces the whole
section of a plugin, so there our lines go, marked, into the file that holds the section.
"""
from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Tuple

from ... import toml
from ...model import HEADER, Edit
from ...policy import Policy
from .configuration import Configuration, handlers, is_imported

Tables = Dict[toml.Path, Dict[str, Any]]

RUNC_TYPE = "io.containerd.runc.v2"
DROP_IN_DIRECTORY = "/etc/containerd/conf.d"
DROP_IN = DROP_IN_DIRECTORY + "/99-gpuops-nvidia.toml"
# A pattern, because containerd does not start when a file that is imported by its name is gone; a narrow one, because
# files that lie in the directory unread must not come into effect by our change.
DROP_IN_IMPORT = DROP_IN_DIRECTORY + "/99-gpuops-*.toml"
ROOT_HEADER = "# Written by gpuops.nvidia: there was no configuration file.\n"

# Where containerd does not inject CDI devices itself, NVIDIA's runtime does, by the names that the device plugin puts
# into annotations of this prefix (nvidia-container-runtime.modes.cdi.annotation-prefixes); containerd has to hand
# them on.
CDI_ANNOTATIONS = "cdi.k8s.io/*"

DEFAULT_SPEC_DIRECTORIES = ["/etc/cdi", "/var/run/cdi"]

# Names of runc's options (api/types/runc/options of containerd); containerd takes them in any case, so two spellings
# of one option would contradict each other
RUNC_OPTIONS = ("BinaryName", "CriuImagePath", "CriuPath", "CriuWorkPath", "IoGid", "IoUid", "NoNewKeyring",
                "NoPivotRoot", "Root", "ShimCgroup", "SystemdCgroup", "TaskApiAddress", "TaskApiVersion")


class CannotExtend(Exception):
    """A file whose tables cannot take further lines; says which."""


def wanted_tables(
    cri: Mapping[str, Any], cri_id: str, release: Tuple[int, int], policy: Policy, systemd_cgroup: bool
) -> Tables:
    """What the CRI plugin's section lacks. cri: the section in effect without our lines."""
    section: toml.Path = ("plugins", cri_id)
    tables: Tables = {}
    settings = _cdi_settings(cri, release) if policy.cdi else {}
    if settings:
        tables[section] = settings
    default = cri.get("containerd", {}).get("default_runtime_name", "runc")
    if policy.default_handler and default != policy.handler:
        tables[section + ("containerd",)] = {"default_runtime_name": policy.handler}
    known = handlers(cri)
    missing = {name: binary for name, binary in policy.entries.items() if name not in known}
    if not missing:
        return tables
    runtimes = section + ("containerd", "runtimes")
    if release < (2, 0) and not known:
        # 1.x: a table of handlers without runc takes the built-in runc away, so it is written out as it is built in
        tables[runtimes + ("runc",)] = {"runtime_type": RUNC_TYPE}
        if release >= (1, 7):
            tables[runtimes + ("runc",)]["sandbox_mode"] = "podsandbox"
    for name, binary in missing.items():
        entry, options = inherited(known, systemd_cgroup)
        if release < (1, 7) or not policy.cdi:
            entry["container_annotations"] = [CDI_ANNOTATIONS]
        tables[runtimes + (name,)] = entry
        tables[runtimes + (name, "options")] = dict(options, BinaryName=binary)
    return tables


def inherited(known: Mapping[str, Any], systemd_cgroup: bool) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """(entry, options) of a handler like runc, else like crun, whatever the default handler is."""
    found = [known[name] for name in ("runc", "crun") if isinstance(known.get(name), dict)]
    source: Mapping[str, Any] = found[0] if found else {}
    entry = {"runtime_type": source.get("runtime_type") or RUNC_TYPE}
    if not entry["runtime_type"].startswith("io.containerd.runc."):
        entry["runtime_type"] = RUNC_TYPE
    if source.get("base_runtime_spec"):
        entry["base_runtime_spec"] = source["base_runtime_spec"]
    spelling = {name.lower(): name for name in RUNC_OPTIONS}
    options = {spelling.get(key.lower(), key): value for key, value in source.get("options", {}).items()}
    options.pop("BinaryName", None)
    options.setdefault("SystemdCgroup", systemd_cgroup)
    return entry, options


def difference_from(entry: Mapping[str, Any], binary: str) -> str:
    """How a handler that somebody else defined differs from the wanted one, '' if it does not."""
    told = {key: value for key, value in entry.get("options", {}).items() if key.lower() == "binaryname"}
    if not told:
        return 'BinaryName = ""'
    for key, value in told.items():
        if value != binary:
            return "%s = %s" % (key, toml.render_value(value))
    kind = entry.get("runtime_type", "")
    if not kind.startswith("io.containerd.runc."):
        return "runtime_type = %s" % toml.render_value(kind)
    return ""


def foreign(configuration: Configuration, policy: Policy) -> Dict[str, str]:
    """{handler: how it differs} of the wanted handlers that somebody else defined otherwise."""
    return differing(handlers(without_ours(configuration).cri()), policy)


def differing(known: Mapping[str, Any], policy: Policy) -> Dict[str, str]:
    """{handler: how it differs} of the wanted handlers that are among these otherwise."""
    told = {name: difference_from(known[name], binary) for name, binary in policy.entries.items() if name in known}
    return {name: difference for name, difference in told.items() if difference}


def adoptions(base: Configuration, policy: Policy) -> Dict[str, Tables]:
    """{path: tables} that make somebody else's handlers the wanted ones, in the files that define them last.

    The lines that were there stay beside ours as comments, and come back when ours go.
    """
    known = handlers(base.cri())
    found: Dict[str, Tables] = {}
    for name in foreign(base, policy):
        found.setdefault(base.source_of(name), {}).update(
            adopting(("plugins", base.cri_id), name, known[name], policy.entries[name]))
    return found


def adopting(section: toml.Path, name: str, entry: Mapping[str, Any], binary: str) -> Tables:
    """What makes somebody else's handler the wanted one."""
    handler = section + ("containerd", "runtimes", name)
    spelt = [key for key in entry.get("options", {}) if key.lower() == "binaryname"] or ["BinaryName"]
    tables: Tables = {}
    if not entry.get("runtime_type", "").startswith("io.containerd.runc."):
        tables[handler] = {"runtime_type": RUNC_TYPE}
    tables[handler + ("options",)] = dict.fromkeys(spelt, binary)
    return tables


def present_edits(
    configuration: Configuration, ours: Optional[str], root: str, policy: Policy,
    release: Tuple[int, int], systemd_cgroup: bool, like: str = ""
) -> List[Edit]:
    """Edits that bring the handler. Raises CannotExtend.

    ours: text of our drop-in now, like: the file that it is to be as open as, '' for the root.
    """
    base = without_ours(configuration)
    version = base.version or (3 if release >= (2, 0) else 2)
    tables = wanted_tables(base.cri(), base.cri_id, release, policy, systemd_cgroup)
    top: Tables = {(): {}} if base.version else {(): {"version": version}}
    drop_in = None
    if tables and release >= (2, 0):
        drop_in = HEADER + "version = %d\n\n" % version + toml.render_tables(tables)
        tables = {}
        if not is_imported(base, DROP_IN):
            top[()]["imports"] = [*base.imports, DROP_IN_IMPORT]
    edits = [] if drop_in == ours else [Edit(DROP_IN, ours, drop_in, ours, drop_in, like=like or root)]
    adopted = adoptions(base, policy) if policy.adopt else {}
    if not configuration.files:
        if drop_in or tables:
            edits.append(_written(root, None, {**_filled(top), **tables}))
        return edits
    holder = base.holder()
    for file in configuration.files:
        if file.path != DROP_IN:
            first = _filled(top) if file.path == root and (drop_in or tables) else {}
            mine = {**first, **(tables if file.path == holder else {})}
            edits.append(_written(file.path, file.text, {**mine, **adopted.get(file.path, {})}))
    return [edit for edit in edits if edit.before != edit.after]


def absent_edits(configuration: Configuration, ours: Optional[str]) -> List[Edit]:
    """Edits that take away what is ours."""
    edits = []
    for file in configuration.files:
        if file.path != DROP_IN:
            edits.append(_written(file.path, file.text, {}))
    if ours is not None:
        edits.append(Edit(DROP_IN, ours, None, ours, None))
    return [edit for edit in edits if edit.before != edit.after]


def without_ours(configuration: Configuration) -> Configuration:
    """The configuration as it would be without our files and lines."""
    changed: Dict[str, Optional[str]] = {file.path: toml.without_ours(file.text) for file in configuration.files}
    changed[DROP_IN] = None
    return configuration.but(changed)


def apply_tables(text: str, tables: Mapping[toml.Path, Mapping[str, Any]], path: str) -> str:
    """The text with these tables, whatever lines of ours it had. Raises CannotExtend when TOML does not allow it."""
    base = toml.without_ours(text)
    changed, rest = base, {}
    for table, values in tables.items():
        extended = toml.with_keys(changed, table, values)
        if extended is None:
            rest[table] = values
        else:
            changed = extended
    if rest:
        changed = toml.with_block(changed, toml.render_tables(rest))
    wanted = toml.parse(path, base)
    for table, values in tables.items():
        _set(wanted, table, values)
    try:
        got = toml.parse(path, changed)
    except Exception as error:
        raise CannotExtend(str(error)) from error
    if got != wanted:
        raise CannotExtend("our lines would change more than they should")
    ours, same = (toml.our_lines(each).replace(toml.NO_END, "") for each in (text, changed))
    if ours == same and toml.parse(path, text) == wanted:
        # somebody has written behind our lines since: they need not move
        return text
    return changed


def edited(path: str, text: Optional[str], tables: Mapping[toml.Path, Mapping[str, Any]]) -> Optional[str]:
    """The file with exactly these tables of ours; None when nothing but our own file would be left."""
    after = apply_tables(ROOT_HEADER if text is None else text, tables, path)
    return None if after == ROOT_HEADER else after


def coming_back(before: str, after: str) -> str:
    """The lines of others that come back where ours go."""
    former, kept = ([line[len(toml.FORMER):] for line in toml.our_lines(text).splitlines()
                     if line.startswith(toml.FORMER)] for text in (before, after))
    for line in kept:
        if line in former:
            # two handlers may have had the same line
            former.remove(line)
    return "".join(line + "\n" for line in former)


def _written(path: str, text: Optional[str], tables: Tables) -> Edit:
    after = edited(path, text, tables)
    return Edit(
        path=path,
        before=text,
        after=after,
        shown_before=None if text is None else toml.our_lines(text) or None,
        shown_after=None if after is None else toml.our_lines(after) + coming_back(text or "", after) or None,
        parameters={"tables": [[list(table), dict(values)] for table, values in tables.items()]},
    )


def _filled(tables: Tables) -> Tables:
    return {table: values for table, values in tables.items() if values}


def _cdi_settings(cri: Mapping[str, Any], release: Tuple[int, int]) -> Dict[str, Any]:
    """enable_cdi came with 1.7 and is on by default since 2.0."""
    if release < (1, 7):
        return {}
    settings: Dict[str, Any] = {}
    if cri.get("enable_cdi", release >= (2, 0)) is not True:
        settings["enable_cdi"] = True
    directories = cri.get("cdi_spec_dirs", DEFAULT_SPEC_DIRECTORIES)
    if DEFAULT_SPEC_DIRECTORIES[1] not in directories and "/run/cdi" not in directories:
        settings["cdi_spec_dirs"] = [*directories, DEFAULT_SPEC_DIRECTORIES[1]]
    return settings


def _set(data: Dict[str, Any], table: toml.Path, values: Mapping[str, Any]) -> None:
    for part in table:
        data = data.setdefault(part, {})
        if not isinstance(data, dict):
            raise CannotExtend("'%s' is no table" % part)
    data.update(values)
