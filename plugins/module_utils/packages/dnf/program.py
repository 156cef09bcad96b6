# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What asks dnf's own library (dnf 4), run by the Python of the host that has it (index.py).

It is text, as that Python is another one than ours (3.6 on EL 8) and reads nothing of ours: questions as lines of JSON
on its standard input, a line of JSON for each on its standard output; to an empty question an empty answer. So the
library is loaded once, and what questions look at is read once: each takes a second on EL. dnf's command has no such
answers: its tables are made for people, wrapped at the width of a terminal, and other ones in each release.

Everything that dnf writes lies in directories of ours: its cache, its state, its log. The state of modules is changed
in memory. Not loaded are plugins that write when a transaction, or any command, begins. One question is another matter:
'transact' changes the host, as ansible.builtin.dnf would, and nothing but what it has said before that it would do.
"""
from __future__ import annotations

# What becomes of a package in a transaction; one that makes way is replaced by another version of the same name
COMES, MAKES_WAY, GOES, AGAIN = "comes", "makes way", "goes", "again"
# The exit code where there is a library that cannot be loaded
BROKEN = 3

TEXT = r'''
import json
import logging
import os
import shutil
import signal
import sys
import time
import traceback

try:
    import dnf
    import dnf.callback
    import dnf.db.history
    import dnf.exceptions
    import dnf.i18n
    import dnf.module.module_base
    import dnf.repo
    import dnf.rpm
    import dnf.subject
    import dnf.transaction
    import hawkey
    import libdnf.transaction
except ImportError as error:
    if error.name == "dnf":
        sys.exit(1)
    sys.stderr.write(str(error))
    sys.exit(3)

WRITERS = ("subscription-manager", "product-id", "etckeeper", "snapper", "post-transaction-actions", "local", "upset",
           "debuginfo-install", "notify-packagekit", "system_upgrade", "rhnplugin")
ACTION = "TransactionItemAction_"
KINDS = {getattr(libdnf.transaction, ACTION + name): kind for name, kind in (
    ("INSTALL", "comes"), ("UPGRADE", "comes"), ("DOWNGRADE", "comes"), ("OBSOLETE", "comes"), ("REINSTALL", "again"),
    ("UPGRADED", "makes way"), ("DOWNGRADED", "makes way"), ("OBSOLETED", "goes"), ("REMOVE", "goes"))}
# Between two words on how far something is that is fetched
SECONDS = 10
# The exit code of one that knows no more of an end than another has said
SAID = 70


def say(words):
    """What it is at, for whoever waits."""
    sys.stderr.write(words + "\n")
    sys.stderr.flush()


class Fetching(dnf.callback.DownloadProgress):
    def __init__(self):
        self.said = time.monotonic()

    def progress(self, payload, done):
        if time.monotonic() >= self.said + SECONDS:
            self.said = time.monotonic()
            say("fetching %s: %d MB" % (payload, done // 1000000))


class Changing(dnf.callback.TransactionProgress):
    """What becomes of packages, and what their scripts say. failed: scripts and packages that did."""

    def __init__(self):
        super(Changing, self).__init__()
        self.failed = []
        self.said = ""

    def progress(self, package, action, ti_done, ti_total, ts_done, ts_total):
        words = "%s %s" % (dnf.transaction.ACTIONS.get(action, "at"), package)
        if package and words != self.said:
            self.said = words
            say(words)

    def scriptout(self, msgs):
        if msgs:
            say(dnf.i18n.ucd(msgs).rstrip())

    def error(self, message):
        self.failed.append(message)


class Waiting(logging.Handler):
    """Of what dnf tells its users, for whom it waits."""

    def emit(self, record):
        words = record.getMessage()
        if record.levelno >= logging.WARNING or words.startswith("Waiting for process"):
            # A plugin that is not there is left out as well
            if "disable plugin patterns" not in words:
                say(words)


def configured(asked):
    """A base with the settings of the host, as ansible.builtin.dnf has them for the transaction."""
    base = dnf.Base()
    conf = base.conf
    root, below = asked["root"], prefix(asked)
    conf.config_file_path = below + conf.config_file_path
    if os.path.exists(conf.config_file_path):
        conf.read()
    conf.installroot = root
    conf.substitutions.update_from_etc(root)
    if below:
        conf.reposdir = [below + "/etc/yum.repos.d"]
        conf.substitutions["releasever"] = dnf.rpm.detect_releasever(root)
    if conf.substitutions.get("releasever") is None:
        conf.substitutions["releasever"] = ""
    conf.assumeyes = True
    conf.exit_on_lock = False
    # Whatever dnf.conf(5) says
    conf.sslverify = True
    return base


def prefix(asked):
    """Of the host's own paths."""
    return "" if asked["root"] == "/" else asked["root"]


def opened(asked):
    base = configured(asked)
    conf = base.conf
    below = prefix(asked)
    if below:
        conf.pluginconfpath = [below + "/etc/dnf/plugins"]
    persistent = below + conf.persistdir
    conf.cachedir = asked["cache"]
    conf.logdir = asked["scratch"]
    conf.persistdir = asked["scratch"] + "/state"
    if not os.path.isdir(conf.persistdir):
        os.makedirs(conf.persistdir)
        if os.path.isdir(persistent + "/modulefailsafe"):
            shutil.copytree(persistent + "/modulefailsafe", conf.persistdir + "/modulefailsafe")
    conf.pluginconfpath = list(conf.pluginconfpath) + [asked["scratch"] + "/plugins"]
    conf.best = True
    conf.install_weak_deps = False
    conf.clean_requirements_on_remove = False
    conf.cacheonly = asked["op"] not in ("update", "refresh")
    # Locks say nothing of what is installed, and their plugin ends where it finds no list
    base.init_plugins(set(WRITERS) | {"versionlock"} if asked["op"] in ("automatic", "hidden") else set(WRITERS))
    base.pre_configure_plugins()
    if asked["beside_system"]:
        base.read_all_repos()
    ours = [repository["id"] for repository in asked["repositories"]]
    for name in list(base.repos):
        if name in ours:
            del base.repos[name]
    for repository in asked["repositories"]:
        base.repos.add(made(repository, conf))
    for repo in base.repos.iter_enabled():
        repo.metadata_expire = 0
        if repo.id in asked["without"]:
            repo.disable()
    base.configure_plugins()
    return base


def made(repository, conf):
    repo = dnf.repo.Repo(repository["id"], conf)
    repo.baseurl = [repository["uri"]]
    repo.gpgcheck = True
    repo.repo_gpgcheck = repository["metadata_signed"]
    repo.gpgkey = [repository["key"]] if repository["key"] else []
    repo.skip_if_unavailable = False
    if repository["user"]:
        repo.username = repository["user"]
        repo.password = repository["password"]
    return repo


def made_ready(asked):
    base = opened(asked)
    base.fill_sack(load_system_repo=True)
    # Before the first request: the library takes none later. One that cannot be read is none
    base.add_remote_rpms(asked["files"], strict=False)
    return base


def filled(asked):
    if "error" in READY:
        raise READY["error"]
    return READY.get("base") or made_ready(asked)


def update(asked):
    """Read every index; {id: why it cannot be read}."""
    base = opened(asked)
    ours = [repository["id"] for repository in asked["repositories"]]
    # Without ours nothing is done with the others
    return {"unread": loaded(sorted(base.repos.iter_enabled(), key=lambda repo: repo.id not in ours))}


def loaded(repos):
    """Have them read what has changed; {id: why it cannot be read}."""
    unread = {}
    for repo in repos:
        say("reading repository " + repo.id)
        repo.set_progress_bar(Fetching())
        # A time to live of 0 counts in whole seconds: what was read in this very second would not be asked for again
        repo._repo.expire()
        try:
            repo.load()
        except (dnf.exceptions.Error, RuntimeError) as error:
            unread[repo.id] = " ".join(str(error).split())
    return unread


def usable(base):
    """Architectures of what can be installed here; others, and sources, may lie beside it."""
    return base.sack.list_arches() + ["noarch"]


def meant(base, spec, query):
    """What a word stands for, which without an architecture is for the system's own (dnf.conf(5), multilib_policy)."""
    found = dnf.subject.Subject(spec).get_best_query(sack=base.sack, query=query).filter(arch=usable(base))
    own = found.filter(arch=[base.conf.substitutions["arch"], "noarch"])
    return list(own or found)


def versions(asked):
    base = filled(asked)
    wanted = asked["uri"].rstrip("/")
    named = [hawkey.CMDLINE_REPO_NAME] if not wanted else []
    named += [repo.id for repo in base.repos.iter_enabled()
             if not wanted or wanted in [each.rstrip("/") for each in repo.baseurl]]
    found = base.sack.query(flags=hawkey.IGNORE_EXCLUDES).available().filter(
        name=asked["packages"], arch=usable(base))
    return {"packages": [[package.name, package.arch, package.evr] for package in found if package.repoid in named
                         and asked["vendor"] in ("", package.vendor)]}


def streams(asked):
    base = filled(asked)
    modules = dnf.module.module_base.ModuleBase(base)
    container = base._moduleContainer
    arches = usable(base)
    found = {}
    for module in modules.get_modules(asked["module"])[0]:
        stream = found.setdefault(module.getStream(), {"enabled": False, "default": False, "packages": []})
        stream["enabled"] = stream["enabled"] or bool(container.isEnabled(module))
        stream["default"] = container.getDefaultStream(module.getName()) == module.getStream()
        stream["packages"].extend(each for each in module.getArtifacts() if each.rpartition(".")[2] in arches)
    return {"streams": found}


def newer_is_there(base, spec):
    solution = dnf.subject.Subject(spec).get_best_solution(base.sack)
    if not solution["query"] or not solution["nevra"] or solution["nevra"].has_just_name():
        return False
    there = base.sack.query().installed().filter(name=solution["nevra"].name)
    return bool(there) and there[0].evr_gt(solution["query"][0])


def ask_for(base, specs, allow_downgrade):
    """As ansible.builtin.dnf does with state 'present'. Its answer: the words of dnf for what cannot be had."""
    told = []
    # All before the first other request: the library takes none later
    for package in base.add_remote_rpms([spec for spec in specs if spec.startswith("/")], strict=True):
        there = base.sack.query().installed().filter(name=package.name, arch=package.arch)
        if allow_downgrade or not (there and there[0].evr_gt(package)):
            base.package_install(package, strict=True)
    for spec in [each for each in specs if not each.startswith("/")]:
        try:
            if newer_is_there(base, spec):
                if allow_downgrade:
                    base.install(spec, strict=True)
            elif not dnf.subject.Subject(spec).get_best_query(sack=base.sack).installed():
                base.install(spec, strict=True)
        except dnf.exceptions.Error as error:
            told.append("%s: %s" % (spec, " ".join(str(error).split())))
    return told


def simulate(asked):
    base = filled(asked)
    told = []
    modules = dnf.module.module_base.ModuleBase(base)
    has_files = bool(asked["files"]) or any(spec.startswith("/") for spec in asked["specs"])
    for module, stream in sorted(asked["streams"].items()):
        try:
            # The library switches streams; a reset before it would be a second choice, which it refuses
            if has_files and stream and not modules.get_modules("%s:%s" % (module, stream))[0]:
                # No repository that can be read has it, and files are of no stream
                continue
            if stream:
                modules.enable(["%s:%s" % (module, stream)])
            elif modules.get_modules(module)[0]:
                modules.reset([module])
        except dnf.exceptions.Error as error:
            told.append("module %s:%s: %s" % (module, stream, " ".join(str(error).split())))
    if asked["streams"]:
        # What plugins leave out depends on the packages that they see, which are others under another stream
        base.sack.reset_excludes()
        base._setup_excludes_includes()
        base._plugins.run_sack()
    if asked["op"] == "simulate":
        told += ask_for(base, asked["specs"], asked["allow_downgrade"])
    for spec in asked["removes"]:
        try:
            base.remove(spec)
        except dnf.exceptions.MarkingError:
            pass
    left_out = []
    for spec in [each for each in asked["specs"] if not each.startswith("/")]:
        hidden = meant(base, spec, base.sack.query(flags=hawkey.IGNORE_REGULAR_EXCLUDES))
        if told and hidden and not dnf.subject.Subject(spec).get_best_query(sack=base.sack):
            left_out.append([hidden[0].name, hidden[0].arch, hidden[0].evr])
    return dict(resolved(base, told), left_out=left_out)


def resolved(base, told):
    """What a transaction does that was asked for. told: the words of dnf for what cannot be had."""
    items = []
    try:
        if not told and base.resolve(allow_erasing=True):
            several = set(base._get_installonly_query())
            # Of several versions one goes: that another one stays is an item too, without a package
            items = [[KINDS[item.action], item.pkg.name, item.pkg.arch, item.pkg.evr, item.pkg.downloadsize,
                      item.pkg.installsize, item.pkg in several] for item in base.transaction if item.action in KINDS]
    except dnf.exceptions.Error as error:
        told = told + [" ".join(str(error).split())]
    return {"items": items, "problem": " | ".join(told)}


def system_cache(asked):
    """A base on the system's own cache, its indexes renewed; (base, {id: why it cannot be read})."""
    base = configured(asked)
    base.conf.cachedir = prefix(asked) + base.conf.cachedir
    base.conf.logdir = base.conf.persistdir = asked["scratch"]
    base.init_plugins(set(WRITERS))
    base.pre_configure_plugins()
    base.read_all_repos()
    base.configure_plugins()
    for repo in base.repos.iter_enabled():
        if repo.id in asked["without"]:
            repo.disable()
    unread = loaded(base.repos.iter_enabled())
    for name in unread:
        base.repos[name].disable()
    base.fill_sack(load_system_repo=False)
    return base, unread


def for_transaction(asked):
    """A base on the system's own cache and state, as ansible.builtin.dnf has it; who waits for a lock, asks again."""
    base = configured(asked)
    conf = base.conf
    below = prefix(asked)
    for name in ("cachedir", "logdir", "persistdir"):
        setattr(conf, name, below + getattr(conf, name))
    if below:
        conf.pluginconfpath = [below + "/etc/dnf/plugins"]
    conf.exit_on_lock = conf.gpgcheck = conf.localpkg_gpgcheck = conf.best = True
    conf.install_weak_deps = conf.clean_requirements_on_remove = False
    if asked["only_say"]:
        base.init_plugins(set(WRITERS))
    else:
        base.setup_loggers()
        base.init_plugins()
    base.pre_configure_plugins()
    base.read_all_repos()
    for pattern in asked["without"]:
        for repo in base.repos.get_matching(pattern):
            repo.disable()
    base.configure_plugins()
    base.fill_sack(load_system_repo="auto")
    return base


def transact(asked):
    """What it would do, and where that is what it is asked to do ('items'), do it. 'done': whether it was done;
    'failed': why it was so with errors; 'scripts': those that failed beside it."""
    base = for_transaction(asked)
    try:
        told = ask_for(base, asked["specs"], asked["allow_downgrade"])
        for spec in asked["removes"]:
            try:
                base.remove(spec)
            except dnf.exceptions.MarkingError:
                pass
        answer = dict(resolved(base, told), done=False)
        if asked["only_say"] or sorted(answer["items"]) != sorted(asked["items"]):
            return answer
        base.download_packages(list(base.transaction.install_set), Fetching())
        for package in base.transaction.install_set:
            check_signature(base, package)
        shown = Changing()
        number = base.do_transaction(shown)
        # What a script has said last may have no end of its line
        say("")
        ended = base.history.old([number])[0] if number is not None else None
        failed = ended is not None and bool(ended.return_code)
        return dict(answer, done=True, failed=shown.failed + ended.output() if failed else [], scripts=shown.failed)
    finally:
        base.close()


def check_signature(base, package):
    """By the keys that rpm trusts, and that which the package's repository is configured with."""
    result, why = base._sig_check_pkg(package)
    if result == 1 and not package._from_cmdline:
        base._get_key_for_package(package)
    elif result:
        raise dnf.exceptions.Error("%s: %s" % (package, why))


def found_in(base, spec):
    return meant(base, spec, base.sack.query(flags=hawkey.IGNORE_EXCLUDES).available())


def refresh(asked):
    """Into the system's own cache, as any dnf would; which of the packages its lists have not."""
    base, unread = system_cache(asked)
    return {"unread": unread, "lacking": [spec for spec in asked["specs"] if not found_in(base, spec)]}


def download(asked):
    """These very packages, to where the system's dnf looks for what it would fetch."""
    base, unread = system_cache(asked)
    found = {spec: found_in(base, spec) for spec in asked["specs"]}
    lacking = [spec for spec, packages in found.items() if not packages]
    if not lacking:
        wanted = [packages[0] for packages in found.values()]
        base.download_packages(wanted, Fetching())
        for package in [each for each in wanted if each.repo._repo.isLocal()]:
            # Of a directory dnf fetches nothing, and it may be gone by then
            directory = package.repo._repo.getCachedir() + "/packages"
            if not os.path.isdir(directory):
                os.makedirs(directory)
            shutil.copy(package.localPkg(), directory)
    return {"unread": unread, "lacking": lacking}


def copied(asked):
    """A copy of dnf's history, as dnf opens its own for writing; None where dnf has never changed anything."""
    origin = prefix(asked) + asked["history"]
    if not os.path.exists(origin):
        return None
    for ending in ("", "-wal"):
        if os.path.exists(origin + ending):
            shutil.copy(origin + ending, asked["scratch"] + "/history.sqlite" + ending)
    # It closes the database when nothing refers to it any more
    return dnf.db.history.SwdbInterface(asked["scratch"])


def automatic(asked):
    """Packages that came because others needed them (dnf(8), mark)."""
    base = filled(asked)
    database = copied(asked)
    if not database:
        return {"packages": []}
    reasons = (libdnf.transaction.TransactionItemReason_DEPENDENCY,
               libdnf.transaction.TransactionItemReason_WEAK_DEPENDENCY)
    return {"packages": [[package.name, package.arch, package.evr] for package in base.sack.query().installed()
                         if database.swdb.resolveRPMTransactionItemReason(package.name, package.arch, -1) in reasons]}


def hidden(asked):
    """Those of what is installed that dnf does not find."""
    base = filled(asked)
    return {"hidden": [spec for spec in asked["specs"]
                       if not dnf.subject.Subject(spec).get_best_query(sack=base.sack).installed()]}


def history(asked):
    """Transactions, oldest first."""
    told = []
    database = copied(asked)
    for entry in reversed(database.old() if database else []):
        items = [[KINDS.get(each.action, ""), each.name, each.arch, each.evr] for each in entry.packages()
                 if each.is_package()]
        told.append({"id": str(entry.tid), "ended": bool(entry.end_timestamp), "items": items,
                     "command": entry.cmdline or ""})
    return {"transactions": told}


ANSWERS = {"update": update, "versions": versions, "streams": streams, "simulate": simulate, "remove": simulate,
           "refresh": refresh, "download": download, "automatic": automatic, "hidden": hidden,
           "history": history, "transact": transact}


# Questions that only look at a base; one is made for all that differ in nothing but what they ask
LOOKING = ("versions", "streams", "simulate", "remove")
READY = {}


def settings(asked):
    """What a base is made of."""
    return [asked.get(name) for name in (
        "cache", "beside_system", "repositories", "without", "files", "locks", "database")]


def answer(asked):
    try:
        return ANSWERS[asked["op"]](asked)
    except dnf.exceptions.ProcessLockError as error:
        return {"locked": error.pid, "said": str(error)}
    except (dnf.exceptions.Error, RuntimeError) as error:
        return {"error": " ".join(str(error).split()) or type(error).__name__}


def tell(out, told):
    with os.fdopen(os.dup(out), "w") as handle:
        handle.write(json.dumps(told) + "\n")


def apart(work, *words):
    """Start a process for it and tell its number: what it leaves in the library, which takes some calls once only, is
    in nobody's way."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        work(*words)
        sys.stdout.flush()
        code = 0
    except SystemExit as end:
        if end.code != SAID:
            say(end.code if isinstance(end.code, str) else "ended with %s" % end.code)
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            sys.stderr.flush()
        finally:
            os._exit(code)


def wait_for(pid):
    """Ends too where that ended badly, of which the last words are then that one's."""
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        sys.exit("killed by signal %d" % os.WTERMSIG(status))
    if status:
        sys.exit(SAID)


def tell_apart(out, asked):
    wait_for(apart(lambda: tell(out, answer(asked))))


class Ready:
    """A process that has made a base, and lets one of its own answer each question."""

    def __init__(self, out, asked):
        self.settings = settings(asked)
        theirs, self.orders = os.pipe()
        self.ends, done = os.pipe()
        self.pid = apart(self.work, out, asked, theirs, done)
        os.close(theirs)
        os.close(done)

    def work(self, out, asked, theirs, done):
        os.close(self.orders)
        os.close(self.ends)
        try:
            READY["base"] = made_ready(asked)
        except (dnf.exceptions.Error, RuntimeError) as error:
            READY["error"] = error
        with os.fdopen(theirs) as orders:
            for line in iter(orders.readline, ""):
                tell_apart(out, json.loads(line))
                os.write(done, b".")

    def ask(self, line):
        try:
            with os.fdopen(os.dup(self.orders), "w") as handle:
                handle.write(line)
        except BrokenPipeError:
            # It has ended, and says why
            pass
        if not os.read(self.ends, 1):
            wait_for(self.pid)

    def close(self):
        os.close(self.orders)
        os.close(self.ends)
        wait_for(self.pid)


def main():
    # Whoever started us may have it ignored, and then nobody can be waited for
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    logging.getLogger("dnf").addHandler(Waiting())
    logging.getLogger("dnf").setLevel(logging.INFO)
    # What a plugin prints is no part of an answer, and what a program reads is no question
    out, questions = os.dup(1), os.fdopen(os.dup(0))
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    ready = None
    for line in iter(questions.readline, ""):
        asked = json.loads(line)
        if ready and (asked.get("op") not in LOOKING or settings(asked) != ready.settings):
            ready.close()
            ready = None
        if not asked:
            tell(out, {})
        elif asked["op"] in LOOKING:
            ready = ready or Ready(out, asked)
            ready.ask(line)
        else:
            tell_apart(out, asked)


main()
'''
