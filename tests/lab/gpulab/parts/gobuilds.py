# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Programs built from Go modules: Kubernetes, NVIDIA's container programs, node feature discovery, containerd."""
from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Dict, List, Optional, Tuple

from ..cache import BuildError, Job, Part, cache_root
from .families import FAMILIES, Family, Target

Release = Tuple[int, ...]

# The first Go that fetches by itself the toolchain which a go.mod asks for.
FETCHING: Release = (1, 21)

SCRATCH = ".rewritten"


def required_go() -> str:
    """The Go release that builds every family: the highest `go` line of their go.mod files."""
    return _text(max(_go_line(family) for family in FAMILIES))


def toolchain_problem(family: Optional[Family] = None) -> str:
    """What keeps this machine from building the family (default: any of them), with the remedy; empty if nothing."""
    families = (family,) if family else FAMILIES
    wanted = max(_go_line(each) for each in families)
    remedy = ("run `make deps`, or install Go %s or newer from https://go.dev/dl/ or, where the distribution's is that "
              "new, the package golang-go" % _text(wanted))
    program = _go()
    if not program:
        return "found no `go` command, wanted Go %s or newer: %s" % (_text(wanted), remedy)
    found, policy = _version(program)
    if found < wanted and (found < FETCHING or policy == "local"):
        return "found Go %s with GOTOOLCHAIN=%s, wanted %s or newer: %s" % (
            _text(found), policy or "unknown", _text(wanted), remedy)
    needs_cgo = any(target.cgo for each in families for target in each.targets)
    if needs_cgo and shutil.which("gcc") is None:
        return "found no `gcc`, wanted a C compiler for programs that load libnvidia-ml: install gcc and libc6-dev"
    return ""


def build_family(family: Family, job: Job) -> None:
    problem = toolchain_problem(family)
    if problem:
        raise BuildError("part %s: %s" % (family.name, problem))
    programs = job.out / "bin"
    programs.mkdir()
    for target in family.targets:
        argv: List[str] = [_go(), "build", "-mod=readonly", "-trimpath", "-buildvcs=false",
                           "-ldflags", " ".join(("-s", "-w") + target.ldflags)]
        if target.tags:
            argv += ["-tags", target.tags]
        if target.rewrites:
            argv += ["-modfile", str(_rewritten(family, target, job))]
        destination = programs / target.output if target.output else programs
        # Half a minute to six minutes of compilation should not make the machine unusable meanwhile.
        job.run(["nice", *argv, "-o", str(destination), *target.packages],
                cwd=family.module, env=_environment(target))
        missing = [name for name in target.programs() if not (programs / name).is_file()]
        if missing:
            raise BuildError("part %s: go build ended well but did not write %s" % (family.name, ", ".join(missing)))
    shutil.rmtree(job.out / SCRATCH, ignore_errors=True)


def _rewritten(family: Family, target: Target, job: Job) -> Path:
    """A go.mod beside the family's own that takes the modules with rewritten sources from copies."""
    scratch = job.out / SCRATCH
    scratch.mkdir(exist_ok=True)
    for name in ("go.mod", "go.sum"):
        shutil.copyfile(family.module / name, scratch / name)
    for rewrite in target.rewrites:
        copy = scratch / rewrite.module
        if not copy.is_dir():
            shutil.copytree(_module_source(family, target, rewrite.module, job), copy)
            job.run([_go(), "mod", "edit", "-replace", "%s=%s" % (rewrite.module, copy), scratch / "go.mod"])
        source = copy / rewrite.file
        text = source.read_text(encoding="utf-8")
        if rewrite.old not in text:
            raise BuildError("part %s: found no %s in %s of %s, wanted to rewrite it: adapt the table of families"
                             % (family.name, rewrite.old, rewrite.file, rewrite.module))
        # The module cache is read-only, and so is what was copied from it.
        source.unlink()
        source.write_text(text.replace(rewrite.old, rewrite.new), encoding="utf-8")
    return scratch / "go.mod"


def _module_source(family: Family, target: Target, module: str, job: Job) -> Path:
    environment = _environment(target)
    job.run([_go(), "mod", "download", module], cwd=family.module, env=environment)
    told = subprocess.run([_go(), "list", "-m", "-f", "{{.Dir}}", module], cwd=family.module, env=environment,
                          check=True, stdout=subprocess.PIPE, universal_newlines=True)
    return Path(told.stdout.strip())


def _environment(target: Target) -> Dict[str, str]:
    """The user's environment less what would make a build differ from machine to machine."""
    kept = {name: value for name, value in os.environ.items() if name not in ("GOFLAGS", "GOOS", "GOARCH")}
    kept.update(CGO_ENABLED="1" if target.cgo else "0", GOFLAGS="", GOWORK="off", GOAMD64="v1")
    return kept


def _go_line(family: Family) -> Release:
    text = (family.module / "go.mod").read_text(encoding="utf-8")
    found = re.search(r"^go (\d[\d.]*)", text, re.MULTILINE)
    if found is None:
        raise BuildError("part %s: %s has no go line" % (family.name, family.module / "go.mod"))
    return _release(found.group(1))


def _go() -> str:
    """The machine's own `go`, or the one in the cache (`make deps`) where that is too old; empty if there is none."""
    candidates = [path for path in (shutil.which("go"), shutil.which(str(cache_root() / "go" / "bin" / "go"))) if path]
    return next((path for path in candidates if _version(path)[0] >= FETCHING), candidates[0] if candidates else "")


def _version(program: str) -> Tuple[Release, str]:
    """Version and GOTOOLCHAIN policy of a `go` command (asked outside any module, so that it does not switch)."""
    told = subprocess.run([program, "env", "GOVERSION", "GOTOOLCHAIN"], cwd="/", check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, universal_newlines=True)
    lines = told.stdout.splitlines() + ["", ""]
    found = re.match(r"go(\d[\d.]*)", lines[0])
    return _release(found.group(1)) if found else (0,), lines[1].strip()


def _release(text: str) -> Release:
    return tuple(int(number) for number in text.strip(".").split("."))


def _text(release: Release) -> str:
    return ".".join(str(number) for number in release)


def _part(family: Family) -> Part:
    def build(job: Job) -> None:
        build_family(family, job)

    return Part(family.name, family.title, build, inputs=family.sources())


PARTS: Tuple[Part, ...] = tuple(_part(family) for family in FAMILIES)
