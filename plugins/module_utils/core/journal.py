# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What was done on this host, and what was there before: /var/lib/gpuops, for root alone.

  state.json       what decisions stand on. It is replaced as a whole, so that it is always that of one instant.
  originals/       the bytes of files as they were before us, named by their SHA-256
  journal.jsonl    one line an event of a step, for people: started, done ('late' where a later run has found it so),
                   satisfied, failed, superseded. No decision reads it. At JOURNAL_BYTES it becomes journal.jsonl.1, and
                   so on; only so many are kept.

state.json, by its schema:
  1  {'schema': 1,
      'open':      [{'step', 'plan', 'time', ...}] of steps that were started and that no later event has closed,
      'originals': {path: {'capability', 'content' (SHA-256, None when there was no file), 'mode', 'uid', 'gid',
                    'label', 'attributes' (None where the release did not keep these two),
                    'link' (what the symbolic link at the path said, None when it was none),
                    'folders' (directories that did not exist),
                    'coming' (until the first change is known to be done: SHA-256 of what it makes of the file, None
                    when it takes it away)}}, written before the first change of a path,
      'packages':  {capability: {package: {'before', 'after'}}}, see PackageChange,
      'memory':    {capability: what it wrote down for its next run}}
  0  four files: originals.json (content in base64), packages.json ({capability: {package: version}}), memory.json, and
     journal.jsonl with every event since the first run, open steps among them
"""
from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import time
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple

from .durations import durations
from .errors import GpuOpsError, HostFailed
from .host import Host, Ownership
from .plan import Step

DIRECTORY = "/var/lib/gpuops"
STATE = DIRECTORY + "/state.json"
ORIGINALS = DIRECTORY + "/originals"
JOURNAL = DIRECTORY + "/journal.jsonl"
SCHEMA = 1

_ORIGINAL = ("capability", "content", "mode", "uid", "gid", "label", "attributes", "link", "folders")
_COMING = "coming"
JOURNAL_BYTES = 4 << 20
JOURNALS_KEPT = 3
# Of each journal, read within a few milliseconds; some hundred steps
RECENT_BYTES = 1 << 20
# How often a record that names bytes which are not there must be read before they are lost
READINGS = 5

_SECTIONS: Dict[str, type] = {"open": list, "originals": dict, "packages": dict, "memory": dict}
# The files of schema 0, beside journal.jsonl
_FORMER = {name: "%s/%s.json" % (DIRECTORY, name) for name in ("originals", "packages", "memory")}


@dataclass(frozen=True)
class Original:
    """A file as it was before our first change of it; content is None when it was absent.

    link: what the symbolic link at the path said; '' when there was none. Content and ownership are its target's.
    left: whether restore() leaves the file to somebody who has written it since; content is his then.
    """

    path: str
    capability: str
    content: Optional[bytes]
    ownership: Ownership
    directories: Tuple[str, ...]
    link: str = ""
    left: bool = False


@dataclass(frozen=True)
class PackageChange:
    """What our transactions did to a package.

    before: its version before the first of them, None when it was not there.
    after:  the version that the last of them brought, None when it removed the package.
    """

    before: Optional[str]
    after: Optional[str]


@dataclass
class _State:
    """state.json in memory. contents: bytes of originals, by SHA-256, that are not in files of their own yet."""

    data: Dict[str, Any]
    contents: Dict[str, bytes] = field(default_factory=dict)


class Journal:
    """The host's record of open steps, original files, packages and notes of capabilities.

    One writer at a time, see lock.py; readers may read at any time.
    """

    def __init__(self, host: Host) -> None:
        self.host = host

    # steps

    def note(self, event: str, step: Step, plan: str, **more: Any) -> None:
        """Write down an event of a step; it is on the disk when this returns."""
        line = dict(more, time=round(time.time(), 3), event=event, plan=plan, step=step.to_dict())
        state = self._load()
        others = [each for each in state.data["open"] if Step.from_dict(each["step"]).id != step.id]
        closed = len(others) < len(state.data["open"])
        if event == "started":
            state.data["open"] = others + [{key: value for key, value in line.items() if key != "event"}]
        else:
            state.data["open"] = others
            kept = state.data["originals"].get(step.subject, {})
            if event == "done" or (event == "failed" and self._is_made(kept, step.subject)):
                kept.pop(_COMING, None)
        if closed or event == "started":
            self._save(state)
        self._tell(line)

    def events(self) -> List[Dict[str, Any]]:
        """The events that are kept, oldest first; a line that a crash cut short is left out. For people and tests."""
        return [event for path in [*reversed(_older_journals()), JOURNAL]
                for event in _events(self.host.lines(path, last=2 * JOURNAL_BYTES))]

    def durations(self) -> Dict[str, List[float]]:
        """How long steps took, by their kind (see durations.py), as far as the newest events tell."""
        paths = [*_older_journals()[:1], JOURNAL]
        return durations(event for path in paths for event in _events(self.host.lines(path, last=RECENT_BYTES)))

    def unfinished(self, capability: str) -> List[Dict[str, Any]]:
        """{'step', 'plan', 'time', ...} of a capability's steps that were started and are not known to have ended."""
        return [event for event in self._load().data["open"] if event["step"]["capability"] == capability]

    # originals

    def keep_original(self, capability: str, path: str, coming: Any = ()) -> None:
        """Record a file as it is now, unless an earlier change of ours recorded it already.

        coming: text that is written next, None where the file goes. A change that was killed before it was made is
        told by it from one that was: what somebody has written since is the original then.
        """
        state = self._load()
        known = state.data["originals"].get(path)
        if known is not None and not self._is_foreign(known, path):
            if _COMING in known:
                made = _sha256(self.host.read_bytes(path)) != known["content"]
                self._expect(known, () if made else coming)
                self._save(state)
            return
        content = self.host.read_bytes(path)
        owner = self.host.ownership(path) if content is not None else Ownership(0, 0, 0)
        if owner is None:
            raise HostFailed("host.file_removed", "%s was removed while it was read" % path,
                             "a file that stays while it is read",
                             "run again: the new plan is made on what is there then", path)
        link = self.host.link(path)
        name = None
        if content is not None:
            name = hashlib.sha256(content).hexdigest()
            state.contents[name] = content
        state.data["originals"][path] = dict(
            asdict(owner), capability=capability, content=name, link=link,
            folders=_missing_directories(self.host, path if link is None else self.host.resolve(path)))
        self._expect(state.data["originals"][path], coming)
        self._save(state)

    @staticmethod
    def _expect(kept: Dict[str, Any], coming: Any) -> None:
        kept.pop(_COMING, None)
        if coming != ():
            kept[_COMING] = _sha256(None if coming is None else coming.encode("utf-8", "surrogateescape"))

    def _is_made(self, kept: Mapping[str, Any], path: str) -> bool:
        """Whether a change that failed has been made nevertheless, as where only its way to the disk failed: no later
        step makes it then."""
        try:
            return _COMING in kept and _sha256(self.host.read_bytes(path)) == kept[_COMING]
        except GpuOpsError:
            return False

    def _is_foreign(self, kept: Mapping[str, Any], path: str) -> bool:
        """Whether a change of ours was killed before it was made, and somebody else has changed the file since."""
        return _COMING in kept and _sha256(self.host.read_bytes(path)) not in (kept["content"], kept[_COMING])

    def originals(self, capability: str) -> List[Original]:
        """What restore() would put back, or leave."""
        return self._originals(capability, READINGS)

    def _originals(self, capability: str, readings: int) -> List[Original]:
        state = self._load()
        try:
            found = [(self._original(state, path), self._is_foreign(kept, path))
                     for path, kept in sorted(state.data["originals"].items()) if kept["capability"] == capability]
            return [replace(original, content=self.host.read_bytes(original.path), left=True) if left else original
                    for original, left in found]
        except GpuOpsError:
            # Bytes that a writer has made needless since the record was read are not lost. It may have kept the same
            # ones again by now, so one record that is as before says nothing yet.
            same = self._load().data["originals"] == state.data["originals"]
            if same and readings == 1:
                raise
            return self._originals(capability, readings - same)

    def forget_original(self, path: str) -> None:
        """Drop the record of a file; the next change of it makes a new one."""
        state = self._load()
        if state.data["originals"].pop(path, None) is not None:
            self._save(state)

    def restore(self, path: str) -> None:
        """Put a file back as it was before our first change of it, with its directories, and forget its record."""
        state = self._load()
        if path not in state.data["originals"]:
            return
        if self._is_foreign(state.data["originals"][path], path):
            self.host.clear(path)
            self.forget_original(path)
            return
        original = self._original(state, path)
        now = self.host.ownership(path)
        wanted = original.ownership
        if now is not None and state.data["originals"][path]["attributes"] is None:
            wanted = replace(wanted, label=now.label, attributes=now.attributes)
        if original.link and self.host.link(path) != original.link:
            self.host.make_link(path, original.link)
        if original.content is None:
            self.host.remove(self.host.resolve(path) if original.link else path)
            for directory in reversed(original.directories):
                self.host.remove_empty_dir(directory)
        elif self.host.read_bytes(path) != original.content or now != wanted:
            self.host.put_back(path, original.content, wanted)
        else:
            self.host.clear(path)
        self.forget_original(path)

    def _original(self, state: _State, path: str) -> Original:
        kept = state.data["originals"][path]
        return Original(
            path=path,
            capability=kept["capability"],
            content=None if kept["content"] is None else self._content(state, path, kept["content"]),
            ownership=Ownership(kept["mode"], kept["uid"], kept["gid"], kept["label"], kept["attributes"] or {}),
            directories=tuple(kept["folders"]),
            link=kept["link"] or "",
        )

    def _content(self, state: _State, path: str, name: str) -> bytes:
        content = state.contents.get(name)
        if content is None:
            content = self.host.read_bytes("%s/%s" % (ORIGINALS, name))
        if content is None or hashlib.sha256(content).hexdigest() != name:
            raise GpuOpsError(
                "host.original_damaged",
                found="%s/%s, which keeps %s as it was before us, is %s" % (
                    ORIGINALS, name, path, "gone" if content is None else "damaged"),
                wanted="the bytes that were written there",
                remedy="put it back from a backup of %s; without one, restore %s by hand and take its entry out of %s"
                       % (DIRECTORY, path, STATE),
            )
        return content

    # packages

    def packages(self, capability: str) -> Dict[str, PackageChange]:
        """What our transactions for a capability did to packages, dependencies included."""
        known = self._load().data["packages"].get(capability, {})
        return {name: PackageChange(change["before"], change["after"]) for name, change in known.items()}

    def set_packages(self, capability: str, packages: Mapping[str, PackageChange]) -> None:
        self._put("packages", capability, {name: asdict(change) for name, change in sorted(packages.items())})

    def is_bare(self) -> bool:
        """Whether nothing on the host is ours: no file, no package, and no step that a run has begun."""
        data = self._load().data
        return not (data["open"] or data["originals"] or data["packages"])

    # notes of capabilities

    def recall(self, capability: str) -> Dict[str, Any]:
        """What a capability wrote down for its next run (see remember)."""
        return dict(self._load().data["memory"].get(capability, {}))

    def remember(self, capability: str, facts: Mapping[str, Any]) -> None:
        self._put("memory", capability, facts)

    def _put(self, section: str, capability: str, facts: Mapping[str, Any]) -> None:
        state = self._load()
        if facts == state.data[section].get(capability, {}):
            return
        state.data[section][capability] = dict(facts)
        if not facts:
            del state.data[section][capability]
        self._save(state)

    # the files

    def _load(self) -> _State:
        text = self.host.read(STATE)
        if text is None:
            former = self._former()
            # A writer that has taken them over meanwhile has removed them
            text = self.host.read(STATE)
            if text is None:
                return _State(*former)
        try:
            data = json.loads(text)
            schema = data["schema"]
        except (ValueError, TypeError, KeyError) as error:
            raise _not_understood(STATE, error) from error
        if schema != SCHEMA:
            raise GpuOpsError(
                "host.record_of_a_newer_release",
                found="%s has schema %s" % (STATE, schema),
                wanted="schema %d or an older one" % SCHEMA,
                remedy="a newer release of gpuops.nvidia has worked on this host: use that one or a newer one",
            )
        for section, kind in _SECTIONS.items():
            if not isinstance(data.get(section), kind):
                raise _not_understood(STATE, ValueError("its '%s' is no %s" % (section, kind.__name__)))
        try:
            _check_entries(data)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise _not_understood(STATE, error) from error
        return _State(data)

    def _former(self) -> Tuple[Dict[str, Any], Dict[str, bytes]]:
        """What a release with schema 0 wrote, as it reads in today's."""
        texts = {name: self.host.read(path) or "{}" for name, path in _FORMER.items()}
        try:
            files = {name: json.loads(text) for name, text in texts.items()}
            return migrated(files, _events(self.host.lines(JOURNAL)))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise _not_understood("one of %s" % ", ".join([*_FORMER.values(), JOURNAL]), error) from error

    def _save(self, state: _State) -> None:
        """Originals first, then the record that names them, then what it has made needless."""
        self.host.make_directory(DIRECTORY, 0o700)
        if state.contents:
            self.host.make_directory(ORIGINALS, 0o700)
        for name, content in state.contents.items():
            self.host.write_bytes("%s/%s" % (ORIGINALS, name), content, 0o600)
        self.host.write(STATE, json.dumps(state.data, sort_keys=True, indent=1) + "\n", 0o600)
        there = self.host.list(DIRECTORY)
        for path in _FORMER.values():
            if os.path.basename(path) in there:
                self.host.remove(path)
        named = {kept["content"] for kept in state.data["originals"].values()}
        for name in self.host.list(ORIGINALS):
            if name not in named:
                self.host.remove("%s/%s" % (ORIGINALS, name))

    def _tell(self, line: Mapping[str, Any]) -> None:
        text = json.dumps(line, sort_keys=True)
        found = self.host.stat(JOURNAL)
        size = 0 if found is None else found.st_size
        if size and size + len(text) > JOURNAL_BYTES:
            self._rotate(size)
        self.host.make_directory(DIRECTORY, 0o700)
        self.host.append(JOURNAL, text)

    def _rotate(self, size: int) -> None:
        older = _older_journals()
        if size > 2 * JOURNAL_BYTES:
            # schema 0 let it grow for ever
            kept = "".join(line + "\n" for line in self.host.lines(JOURNAL, last=JOURNAL_BYTES))
            self.host.write(JOURNAL, kept, 0o600)
        for newer, path in reversed(list(zip([JOURNAL, *older], older))):
            if self.host.exists(newer):
                self.host.rename(newer, path)


def migrated(files: Mapping[str, Any], events: Iterable[Mapping[str, Any]]) -> Tuple[Dict[str, Any], Dict[str, bytes]]:
    """(schema 1, bytes of originals by SHA-256) from the files of schema 0 and the events of its journal.

    What only the journal knew and capabilities asked it for becomes memory: units of the specification's refresh that
    we enabled, and our changes of the toolkit's settings.
    """
    contents = {}
    originals = {}
    for path, kept in files["originals"].items():
        name = None
        if kept["content"] is not None:
            content = base64.b64decode(kept["content"])
            name = hashlib.sha256(content).hexdigest()
            contents[name] = content
        originals[path] = dict(kept, content=name, label="", attributes=None, link=None)
    packages = {capability: {name: {"before": None, "after": version} for name, version in known.items()}
                for capability, known in files["packages"].items()}
    memory = {capability: dict(facts) for capability, facts in files["memory"].items()}
    waiting: Dict[str, Dict[str, Any]] = {}
    enabled: Dict[str, bool] = {}
    writes: List[Mapping[str, Any]] = []
    for event in events:
        step = event["step"]
        if event["event"] == "started":
            waiting[step["id"]] = {key: value for key, value in event.items() if key != "event"}
            continue
        waiting.pop(step["id"], None)
        if event["event"] != "done":
            continue
        if step["capability"] == "cdi" and step["action"] in ("service.enable", "service.disable"):
            enabled[step["subject"]] = step["action"] == "service.enable"
        elif step["id"] == _SETTINGS_WRITTEN:
            writes = [*writes, step["change"]][-_WRITES_KEPT:]
    ours = sorted(unit for unit, is_enabled in enabled.items() if is_enabled)
    for capability, key, value in (("cdi", "enabled", ours), ("toolkit", "writes", writes)):
        if value:
            memory.setdefault(capability, {})[key] = value
    return {"schema": SCHEMA, "open": list(waiting.values()), "originals": originals, "packages": packages,
            "memory": memory}, contents


_SETTINGS_WRITTEN = "toolkit/file.write//etc/nvidia-container-runtime/config.toml"
_WRITES_KEPT = 5
# Keys were written in order, so an event began with one of these
_EVENT_BEGINS = re.compile(r'\{"(?:error|event)": ')


def _events(lines: Iterable[str]) -> Iterator[Dict[str, Any]]:
    """Events of a journal's lines. One that stands behind another that a crash cut short is read too."""
    for line in lines:
        for start in sorted({0, *(found.start() for found in _EVENT_BEGINS.finditer(line))}):
            try:
                event = json.loads(line[start:])
            except ValueError:
                continue
            if isinstance(event, dict) and "step" in event and "event" in event:
                yield event
                break


def _not_understood(what: str, error: Exception) -> GpuOpsError:
    return GpuOpsError(
        "host.record_unreadable",
        found="%s cannot be understood: %s" % (what, error),
        wanted="the record of what we did on this host",
        remedy="put it back from a backup; nothing is changed without it, since what is ours could not be told",
    )


def _refuse_lack(entry: Mapping[str, Any], names: Iterable[str]) -> None:
    lacking = sorted(set(names).difference(entry.keys()))
    if lacking:
        raise KeyError(lacking[0])


def _check_entries(data: Mapping[str, Any]) -> None:
    """Raises what reading a part that is missing raises: an entry may have been taken out by hand, and not whole."""
    for event in data["open"]:
        Step.from_dict(event["step"])
        if not isinstance(event["plan"], str):
            raise TypeError("the plan of an open step is no text")
    for kept in data["originals"].values():
        _refuse_lack(kept, _ORIGINAL)
    for changes in data["packages"].values():
        for change in changes.values():
            _refuse_lack(change, ("before", "after"))
    for facts in data["memory"].values():
        facts.items()


def _sha256(content: Optional[bytes]) -> Optional[str]:
    return None if content is None else hashlib.sha256(content).hexdigest()


def _older_journals() -> List[str]:
    """The newest first."""
    return ["%s.%d" % (JOURNAL, number) for number in range(1, JOURNALS_KEPT + 1)]


def _missing_directories(host: Host, path: str) -> List[str]:
    missing = []
    directory = os.path.dirname(path)
    while directory not in ("/", "") and not host.exists(directory):
        missing.append(directory)
        directory = os.path.dirname(directory)
    return list(reversed(missing))
