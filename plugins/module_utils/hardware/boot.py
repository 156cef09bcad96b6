# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What boots, and with which driver: installed kernels, the boot loader's default entry, the running kernel's command
line and parameters, and the one way to find the driver's module of a kernel.

What a boot loader will do is read from the files that it reads itself, never from what those are generated from: a
change of /etc/default/grub has no effect until grub-mkconfig ran.
"""
from __future__ import annotations

import fnmatch
import re
import shlex
from dataclasses import asdict, dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Pattern, Sequence, Tuple

from ..core.errors import HostFailed
from ..core.facts import OPEN, PROPRIETARY
from ..core.host import Host

# Where the driver's kernel module goes by another name: Debian's alternatives, and its packages of older branches.
MODULE_FILE = re.compile(r"nvidia(-current|-tesla(-\d+)?)?(-open)?\.ko(\.\w+)?")
PARAMETERS_OF = ("nvidia", "nvidia_drm")

GRUB_DIRECTORIES = ("/boot/grub", "/boot/grub2")
# The Boot Loader Specification: $BOOT is /boot, or the EFI system partition, which is mounted at one of these.
ENTRY_DIRECTORIES = ("/boot/loader", "/efi/loader", "/boot/efi/loader")
IMAGE_DIRECTORIES = ("/boot/EFI/Linux", "/efi/EFI/Linux", "/boot/efi/EFI/Linux")
# systemd: Boot Loader Interface, the vendor's namespace of its EFI variables
LOADER_VARIABLE = "/sys/firmware/efi/efivars/Loader%s-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"

_KERNEL_FILE = re.compile(r"(?:^|/)vmlinu[xz]-(\S+)$")
_BLSCFG = re.compile(r"^\s*blscfg\b.*$", re.MULTILINE)
_DEFAULT = re.compile(r"^\s*set default=(.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Module:
    """The driver's module of one kernel; every field is '' where there is none.

    path:    its file, compressed or not.
    version: version of the driver.
    license: 'Dual MIT/GPL' is the open one, 'NVIDIA' the proprietary one.
    signer:  name of the key that signed it, '' for an unsigned one.
    key:     serial number of that key, lower-case hexadecimal digits without leading zeros.
    """

    path: str = ""
    version: str = ""
    license: str = ""
    signer: str = ""
    key: str = ""

    @property
    def kind(self) -> str:
        """OPEN or PROPRIETARY, '' where there is none."""
        return kind_of(self.license)


@dataclass(frozen=True)
class BootState:
    """What boots next, and what the running kernel was started with.

    kernels:      releases that can boot, oldest first.
    loader:       'grub', 'systemd-boot', or '' where no configuration of one can be read.
    default:      release that the next boot takes; the newest where it can only be guessed, '' without any kernel.
    guess:        why the default is a guess, '' where it was read.
    command_line: that of the running kernel.
    parameters:   {module: {parameter: value}} of the driver's modules that are loaded.
    """

    kernels: Tuple[str, ...] = ()
    loader: str = ""
    default: str = ""
    guess: str = ""
    command_line: str = ""
    parameters: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def to_dict(self) -> Dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Entry:
    """One entry of a boot menu.

    names:   what it can be called by: title, id, file name.
    release: kernel that it boots, '' for anything else (memory tests, firmware, other systems).
    entries: those of a submenu.
    """

    names: Tuple[str, ...]
    release: str = ""
    entries: Tuple[Entry, ...] = ()
    submenu: bool = False


def boot_state(host: Host) -> BootState:
    """Read everything; changes nothing and runs no command.

    What is for root alone (RHEL's /boot/grub2, an EFI system partition) makes the default a guess for other readers.
    """
    installed = kernels(host)
    loader, chosen, denied = "", None, ""
    try:
        loader, chosen = _chosen(host)
    except HostFailed as failure:
        denied = _denied(failure)
    default, guess = chosen.release if chosen else "", ""
    if not default and installed:
        default = installed[-1]
        guess = (denied or _why_guessed(loader, chosen)) if len(installed) > 1 else ""
    return BootState(
        kernels=installed,
        loader=loader,
        default=default,
        guess=guess,
        command_line=(host.read("/proc/cmdline") or "").strip(),
        parameters={name: _parameters(host, name) for name in PARAMETERS_OF if host.is_dir("/sys/module/" + name)},
    )


def _why_guessed(loader: str, chosen: Optional[Entry]) -> str:
    if chosen:
        return "the default entry of %s is '%s', which names no kernel" % (loader, chosen.names[0])
    if loader:
        return "no entry of %s can be told to be the default" % loader
    return "no boot loader's configuration can be read"


def kernels(host: Host) -> Tuple[str, ...]:
    """Releases that can boot: those with an image or an entry of the Boot Loader Specification, and modules."""
    releases = {name[len("/boot/vmlinuz-"):] for name in host.glob("/boot/vmlinuz-*")}
    try:
        releases.update(entry.release for entry in _specified_entries(host) + _unified_images(host))
    except HostFailed as failure:
        _denied(failure)
    return tuple(sorted((name for name in releases if name and host.is_dir("/lib/modules/" + name)),
                        key=release_key))


def _denied(failure: HostFailed) -> str:
    """What was for root alone; any other failure is raised again."""
    if not failure.is_denial:
        raise failure
    return failure.found


def release_key(release: str) -> Tuple[Tuple[int, str], ...]:
    """Order of kernel releases: numbers as numbers, words as words."""
    parts = re.findall(r"\d+|[a-z]+", release)
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in parts)


# modules


def module_path(host: Host, release: str) -> str:
    """File of the module that 'modprobe nvidia' would load in a kernel, '' if there is none."""
    return _listed_file(host, release, MODULE_FILE)


def module_file(host: Host, release: str, name: str) -> str:
    """File of any module in a kernel, '' if there is none; '-' and '_' are one in its name."""
    return _listed_file(host, release, re.compile("[-_]".join(re.split("[-_]", name)) + r"\.ko(\.\w+)?"))


def _listed_file(host: Host, release: str, name: Pattern[str]) -> str:
    """modprobe looks modules up in modules.dep; depmod(8) lists one file a name there, by its search order."""
    for line in (host.read("/lib/modules/%s/modules.dep" % release) or "").splitlines():
        path = line.partition(":")[0]
        if name.fullmatch(path.rsplit("/", 1)[-1]):
            return path if path.startswith("/") else "/lib/modules/%s/%s" % (release, path)
    return ""


def installed_module(host: Host, release: str) -> Module:
    """The driver's module of a kernel."""
    path = module_path(host, release)
    return read_module(host, path) if path else Module()


def read_module(host: Host, path: str) -> Module:
    """A module file, as modinfo(8) tells it."""
    fields: Dict[str, str] = {}
    for line in host.run(["modinfo", path], check=False).stdout.splitlines():
        name, _separator, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    return Module(path, fields.get("version", ""), fields.get("license", ""), fields.get("signer", ""),
                  serial(fields.get("sig_key", "")))


def kind_of(license: str) -> str:
    """OPEN or PROPRIETARY by what the driver's module names as its licence, '' where it names none."""
    return "" if not license else PROPRIETARY if license == "NVIDIA" else OPEN


def loaded_kind(host: Host) -> str:
    """OPEN or PROPRIETARY of the driver that is loaded, '' where nothing tells.

    Both name themselves in the first line: 'NVIDIA UNIX Open Kernel Module for x86_64  580.95.05 ...' and
    'NVIDIA UNIX x86_64 Kernel Module  580.95.05 ...' (open-gpu-kernel-modules, kernel-open/nvidia/nv-procfs.c).
    """
    title = (host.read("/proc/driver/nvidia/version") or "").partition("\n")[0]
    return OPEN if "Open Kernel Module" in title else PROPRIETARY if "Kernel Module" in title else ""


def serial(text: str) -> str:
    """A serial number in the form of Module.key: modinfo and mokutil write pairs of digits with colons between."""
    return text.replace(":", "").strip().lower().lstrip("0")


def _parameters(host: Host, module: str) -> Dict[str, str]:
    directory = "/sys/module/%s/parameters" % module
    return {name: (host.read("%s/%s" % (directory, name)) or "").strip() for name in host.list(directory)}


# the default entry


def _chosen(host: Host) -> Tuple[str, Optional[Entry]]:
    """(boot loader, its default entry or None where that cannot be told)."""
    if not _variable(host, "Info").startswith("systemd-boot"):
        for directory in GRUB_DIRECTORIES:
            text = host.read(directory + "/grub.cfg")
            if text is not None:
                return "grub", _grub_default(host, directory, text)
    for directory in ENTRY_DIRECTORIES:
        if host.exists(directory + "/loader.conf"):
            return "systemd-boot", _systemd_boot_default(host, directory)
    return "", None


def _variable(host: Host, name: str) -> str:
    """Text of an EFI variable of the boot loader: four attribute bytes, then UTF-16 with a zero at its end."""
    data = host.read_bytes(LOADER_VARIABLE % name) or b""
    return data[4:].decode("utf-16-le", "replace").rstrip("\0")


# GRUB: GNU GRUB Manual, 'default', 'Simple configuration'; grub-core/normal/menu.c


def _grub_default(host: Host, directory: str, text: str) -> Optional[Entry]:
    if "custom.cfg" in text:
        text += host.read(directory + "/custom.cfg") or ""
    environment = parse_environment(host.read(directory + "/grubenv") or "")
    before, *behind = _BLSCFG.split(text, maxsplit=1)
    entries = parse_grub(before)
    if behind:
        # Fedora's GRUB: at this command come the entries by their file names, the newest first
        specified = sorted(_specified_entries(host), key=lambda entry: release_key(entry.names[0]), reverse=True)
        entries += (*specified, *parse_grub(behind[0]))
    return choose_grub(entries, grub_default(text, environment))


def parse_environment(text: str) -> Dict[str, str]:
    """A GRUB environment block: name=value lines, padded with '#'."""
    pairs = (line.partition("=") for line in text.splitlines() if not line.startswith("#"))
    return {name: value for name, separator, value in pairs if separator}


def grub_default(text: str, environment: Mapping[str, str]) -> str:
    """What GRUB's variable 'default' is once its configuration was read."""
    if environment.get("next_entry"):
        return environment["next_entry"]
    values = [value.strip() for value in _DEFAULT.findall(text) if "next_entry" not in value]
    value = values[-1].strip("\"'") if values else ""
    return re.sub(r"\$\{?(\w+)\}?", lambda name: environment.get(name.group(1), ""), value)


def parse_grub(text: str) -> Tuple[Entry, ...]:
    """Entries of a grub.cfg, submenus included, in the order in which GRUB numbers them.

    Both branches of a condition are taken: what grub-mkconfig writes has entries in none that could matter but that of
    the firmware's settings, which comes last.
    """
    open_blocks: List[Tuple[List[str], List[Entry], List[str]]] = [([], [], [])]
    for line in text.splitlines():
        bare = line.strip()
        if bare == "}" and len(open_blocks) > 1:
            words, entries, releases = open_blocks.pop()
            _close(open_blocks[-1], words, entries, releases)
        elif bare.endswith("{") and not bare.startswith("#"):
            open_blocks.append((_words(bare[:-1]), [], []))
        else:
            # Ubuntu's 10_linux_zfs puts the file in quotes
            files = (word.strip("\"'") for word in bare.split()[1:2])
            open_blocks[-1][2].extend(match.group(1) for match in map(_KERNEL_FILE.search, files) if match)
    return tuple(open_blocks[0][1])


def _close(parent: Tuple[List[str], List[Entry], List[str]], words: List[str], entries: List[Entry],
           releases: List[str]) -> None:
    kind = words[0] if words else ""
    if kind not in ("menuentry", "submenu"):
        parent[1].extend(entries)
        return
    names = words[1:2] + [value for option, value in zip(words, words[1:])
                          if option in ("--id", "$menuentry_id_option", "${menuentry_id_option}")]
    parent[1].append(Entry(tuple(names) or ("",), releases[0] if releases else "", tuple(entries), kind == "submenu"))


def _words(line: str) -> List[str]:
    try:
        return shlex.split(line)
    except ValueError:
        return line.split()


def started_with(text: str) -> Dict[str, Tuple[str, ...]]:
    """{kernel: arguments that every entry of a grub.cfg starts it with, in order}."""
    found: Dict[str, Tuple[str, ...]] = {}
    for line in text.splitlines():
        words = line.split()
        match = _KERNEL_FILE.search(words[1].strip("\"'")) if len(words) > 1 and words[0].startswith("linux") else None
        if match:
            given = found.get(match.group(1), tuple(words[2:]))
            found[match.group(1)] = tuple(word for word in given if word in words[2:])
    return found


def choose_grub(entries: Sequence[Entry], default: str) -> Optional[Entry]:
    """The entry that a value of 'default' means: numbers, titles or ids, with '>' between menu and submenu.

    One that names no entry means the first, as an empty one does; '>>' in a title is one '>'.
    """
    first, *rest = re.split(r"(?<!>)>(?!>)", default, maxsplit=1)
    named = first.replace(">>", ">")
    found = entries[0] if entries else None
    if named.isdigit():
        found = entries[int(named)] if int(named) < len(entries) else found
    else:
        found = next((entry for entry in entries if named and named in entry.names), found)
    if found is not None and found.submenu:
        return choose_grub(found.entries, rest[0] if rest else "")
    return found


# The Boot Loader Specification (uapi-group.org) and systemd-boot(7), loader.conf(5)


def _specified_entries(host: Host) -> Tuple[Entry, ...]:
    """Entries of the Boot Loader Specification (type 1) in the order in which systemd-boot shows them."""
    found = [(name, *parse_entry(name, host.read("%s/entries/%s" % (directory, name)) or ""))
             for directory in ENTRY_DIRECTORIES for name in host.list(directory + "/entries") if name.endswith(".conf")]
    return tuple(entry for _name, _fields, entry in in_menu_order(found))


def _unified_images(host: Host) -> Tuple[Entry, ...]:
    """Kernel, initramfs and command line in one file (type 2); kernel-install ends its name in the release."""
    releases = host.list("/lib/modules")
    return tuple(Entry((name,), max((each for each in releases if name.endswith(each + ".efi")), key=len, default=""))
                 for directory in IMAGE_DIRECTORIES for name in host.list(directory) if name.endswith(".efi"))


def in_menu_order(found: List[Tuple[str, Dict[str, str], Entry]]) -> List[Tuple[str, Dict[str, str], Entry]]:
    """Specification, 'Sorting': by sort key, machine and newest version; those without sort key after, by file name.

    Those that boot counting has given up come last.
    """
    ordered = sorted(found, key=lambda each: release_key(each[0]), reverse=True)
    ordered.sort(key=lambda each: release_key(each[1].get("version", "")) if "sort-key" in each[1] else (),
                 reverse=True)
    ordered.sort(key=lambda each: each[1].get("machine-id", "") if "sort-key" in each[1] else "")
    ordered.sort(key=lambda each: ("sort-key" not in each[1], each[1].get("sort-key", "")))
    ordered.sort(key=lambda each: re.search(r"\+0(-\d+)?\.conf$", each[0]) is not None)
    return ordered


def parse_entry(name: str, text: str) -> Tuple[Dict[str, str], Entry]:
    """(fields, entry) of a file of the Boot Loader Specification.

    Its id is the file's name without what boot counting added; GRUB leaves '.conf' out too.
    """
    fields: Dict[str, str] = {}
    for line in text.splitlines():
        words = line.split(None, 1)
        if len(words) == 2 and not line.startswith("#"):
            fields.setdefault(words[0], words[1].strip())
    image = _KERNEL_FILE.search(fields.get("linux", ""))
    release = image.group(1) if image else fields.get("version", "") if "linux" in fields else ""
    known = re.sub(r"\+\d+(-\d+)?\.conf$", ".conf", name)
    return fields, Entry((known, known[:-len(".conf")], fields.get("title", known)), release)


def _systemd_boot_default(host: Host, directory: str) -> Optional[Entry]:
    """What was chosen for one boot, by bootctl, or by loader.conf; the first of the menu where nothing was."""
    entries, images = _specified_entries(host), _unified_images(host)
    words = [line.split(None, 1) for line in (host.read(directory + "/loader.conf") or "").splitlines()]
    configured = [each[1].strip() for each in words if len(each) == 2 and each[0] == "default"]
    for wanted in (_variable(host, "EntryOneShot"), _variable(host, "EntryDefault"), *configured[-1:]):
        pattern = _variable(host, "EntryLastBooted") if wanted == "@saved" else wanted
        for entry in entries + images:
            if pattern and any(fnmatch.fnmatchcase(name.lower(), pattern.lower()) for name in entry.names[:2]):
                return entry
    # Where among the others an image comes stands inside it.
    return entries[0] if entries and not images else None
