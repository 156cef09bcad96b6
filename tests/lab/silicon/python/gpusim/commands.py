# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The command lines of modprobe, rmmod and insmod."""
from __future__ import annotations

import os
import sys
from typing import List

from gpusim import files, modules
from gpusim.board import BoardError, read

QUESTIONS = ("-n", "--dry-run", "--show", "-D", "--show-depends", "-c", "--showconfig", "--show-config", "-V",
             "--version", "-h", "--help", "-R", "--resolve-alias", "--dump-modversions", "--show-modversions",
             "--show-exports")
REMOVE = ("-r", "--remove")
WITH_VALUE = ("-C", "--config", "-d", "--dirname", "-S", "--set-version", "-w", "--wait")


def modprobe(arguments: List[str]) -> int:
    """Questions go to the real modprobe; loading and removing happen here."""
    options = [word for word in arguments if word.startswith("-")]
    if any(word in QUESTIONS for word in options) or not arguments:
        asked = [modules.module_name(word) for word in arguments if not word.startswith("-")]
        if asked and modules.INFINIBAND.issuperset(asked) and any(word in ("-n", "--dry-run") for word in options):
            return 0
        os.execv(modules.kmod_program("modprobe"), ["modprobe"] + arguments)
    names, passed = _split(arguments)
    quiet = any(word in ("-q", "--quiet") for word in options) or _short(options, "q")
    if any(word in REMOVE for word in options) or _short(options, "r"):
        return _each(names, _remove, quiet)
    if any(word in ("-a", "--all") for word in options) or _short(options, "a"):
        return _each(names, lambda name: modules.load_name(name, [], passed), quiet)
    return _each(names[:1], lambda name: modules.load_name(name, names[1:], passed), quiet)


def _short(options: List[str], letter: str) -> bool:
    """Is the letter in a group of short options, such as the r of -rq?"""
    return any(not word.startswith("--") and letter in word[1:] for word in options)


def _split(arguments: List[str]) -> "tuple[List[str], List[str]]":
    """Names and parameters, and those options that the resolution of names must know."""
    names: List[str] = []
    passed: List[str] = []
    words = iter(arguments)
    for word in words:
        if word in WITH_VALUE:
            passed += [word, next(words, "")]
        elif word.startswith("-"):
            if word in ("-b", "--use-blacklist", "-i", "--ignore-install"):
                passed.append(word)
        else:
            names.append(word)
    return names, passed


def _each(names: List[str], action: object, quiet: bool) -> int:
    failed = 0
    for name in names:
        try:
            action(name)  # type: ignore[operator]
        except modules.Refused as refusal:
            failed = 1
            if not quiet:
                _complain("modprobe", refusal)
    return failed


def _complain(program: str, refusal: modules.Refused) -> None:
    reason = refusal.reason
    if reason.startswith(("modprobe:", "Error running")):
        text = reason
    elif reason.startswith("is in use") or reason == "is not currently loaded":
        text = "%s: %s: Module %s %s" % (program, "FATAL" if program == "modprobe" else "ERROR", refusal.name,
                                         "is in use." if program == "modprobe" else reason)
    else:
        text = "%s: ERROR: could not insert %s: %s" % (
            program, "'%s'" % refusal.name if program == "modprobe" else "module " + refusal.name, reason)
    print(text, file=sys.stderr)


def _remove(name: str) -> None:
    loaded = files.loaded_modules(read(files.silicon_directory()))
    code, lines, errors = modules.resolve(name, [], [])
    wanted = modules.module_name(name)
    if wanted not in loaded and code == 0:
        paths = [line.split()[1] for line in lines if line.startswith("insmod ")]
        wanted = modules.in_kernel_name(paths[-1]) if paths else wanted
    if wanted in loaded:
        modules.remove_with_unused(wanted)
    elif code != 0 and wanted not in modules.BUILT_IN:
        raise modules.Refused(name, "modprobe: FATAL: Module %s not found." % name)


def rmmod(arguments: List[str]) -> int:
    failed = 0
    for name in [modules.module_name(word) for word in arguments if not word.startswith("-")]:
        try:
            modules.remove(name)
        except modules.Refused as refusal:
            failed = 1
            _complain("rmmod", refusal)
    return failed


def insmod(arguments: List[str]) -> int:
    words = [word for word in arguments if not word.startswith("-")]
    if not words:
        print("insmod: ERROR: missing filename.", file=sys.stderr)
        return 1
    try:
        modules.load_file(words[0], words[1:])
    except modules.Refused as refusal:
        _complain("insmod", modules.Refused(words[0], refusal.reason))
        return 1
    return 0


def run(program: str, arguments: List[str]) -> int:
    try:
        return {"modprobe": modprobe, "rmmod": rmmod, "insmod": insmod}[program](arguments)
    except BoardError as problem:
        print("%s: ERROR: %s" % (program, problem), file=sys.stderr)
        return 1
