# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A small client of the Kubernetes API: JSON in, JSON out, and errors that name the server and the kubeconfig.

The kubernetes library reads kubeconfigs and keeps TLS, proxies and token refresh; the requests themselves are plain
paths of the API, so that one code serves every generation of that library.
"""
from __future__ import annotations

import json
import os
import queue
import re
import threading
import time
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union
from urllib.parse import urlencode, urlsplit

from ..core.collecting import without_collection
from ..core.errors import GpuOpsError
from .long_lists import without
from .repeating import ALWAYS, MERGED, PASSING, UNDONE, Attempts, Repetition, retry_after

try:
    import kubernetes
    import urllib3
    import yaml

    IMPORT_ERROR: Optional[ImportError] = None
except ImportError as error:
    IMPORT_ERROR = error

PAGE_SIZE = 500
CONNECT_TIMEOUT_S = 10
READ_TIMEOUT_S = 60
# Up to which two clocks are one: an answer has a date of whole seconds, and takes its time
SAME_CLOCK = timedelta(seconds=5)
MERGE_PATCH = "application/merge-patch+json"
# Any JSON is YAML, and this is the one name that every API server knows for it.
SERVER_SIDE_APPLY = "application/apply-patch+yaml"
FIELD_MANAGER = "gpuops"
# Of each object of a list only its metadata; a server that cannot answers with whole objects.
METADATA_ONLY = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json"
OK, GONE = 200, 410
# The code of an API server that was asked until the time for that was over
NO_ANSWER = "cluster.no_answer"
# Where a page goes on, which API servers write before its objects (metav1.ListMeta in k8s.io/apimachinery)
_GOES_ON = re.compile(rb'\s*\{[^{}\[\]]*"metadata":\s*\{[^{}]*"continue":\s*"([^"\\]+)"')
# Of what a user of a kubeconfig has: token, password, client-key-data, id-token, client-secret, AWS_SECRET_ACCESS_KEY
# Of a 403 whose cause is no missing right of the user's: PodSecurity, quotas, limits, policies and webhooks
# (k8s.io/apiserver, pkg/admission/errors.go and pkg/admission/plugin/webhook/errors)
_OF_ADMISSION = re.compile(r"is forbidden: (?![Uu]ser )|denied the request")
_SECRET = re.compile(r"token$|passw|secret|key-data|access_?key|api_?key|credential", re.IGNORECASE)


class ApiError(GpuOpsError):
    """The API server answered with an error status.

    message:     its words. causes: the reasons that it names in them, as 'DisruptionBudget'.
    retry_after: seconds after which it may be asked again; None where it does not say.
    """

    def __init__(self, code: str, status: int, message: str, found: str, wanted: str, remedy: str) -> None:
        super().__init__(code, found, wanted, remedy, status=status)
        self.status = status
        self.message = message
        self.causes: Tuple[str, ...] = ()
        self.retry_after: Optional[float] = None


@dataclass(frozen=True)
class Connection:
    """Where the API server is and who we are there, in the words of kubernetes.core's options."""

    kubeconfig: Union[str, Dict[str, Any], None] = None
    context: Optional[str] = None
    host: Optional[str] = None
    api_key: Optional[str] = None
    username: Optional[str] = None
    password: Optional[str] = None
    validate_certs: Optional[bool] = None
    ca_cert: Optional[str] = None
    client_cert: Optional[str] = None
    client_key: Optional[str] = None
    proxy: Optional[str] = None
    no_proxy: Optional[str] = None
    proxy_headers: Optional[Dict[str, Any]] = None
    persist_config: Optional[bool] = None
    impersonate_user: Optional[str] = None
    impersonate_groups: List[str] = field(default_factory=list)

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Connection:
        """The connection from a module's parameters or a plugin's options; empty values count as absent."""
        names = cls.__dataclass_fields__
        return cls(**{name: options[name] for name in names if options.get(name) not in (None, "", [], {})})

    @property
    def complete(self) -> bool:
        """True when host and credentials are given, so that no kubeconfig is needed."""
        credentials = self.api_key or (self.username and self.password) or (self.client_cert and self.client_key)
        return bool(self.host and credentials)


def secrets(access: Connection) -> Tuple[str, ...]:
    """What may never be shown: token and passwords, that in a proxy's URL and a kubeconfig's users included.

    And nothing else: each is taken out of every text of a result, where the name of a region or a profile is a part of
    names that are needed.
    """
    headers = access.proxy_headers or {}
    found = [access.api_key, access.password, headers.get("proxy_basic_auth"), headers.get("basic_auth"),
             urlsplit(access.proxy or "").password]
    if isinstance(access.kubeconfig, dict):
        found += _hidden([entry.get("user") for entry in access.kubeconfig.get("users") or ()])
    return tuple(each for each in found if each)


def _hidden(value: Any) -> List[str]:
    """The texts in nested lists and dictionaries that stand under a name of a secret, as {password: x} has it or
    {name: PASSWORD, value: x}, the form of a program's environment."""
    if isinstance(value, list):
        return [text for part in value for text in _hidden(part)]
    if not isinstance(value, dict):
        return []
    called = {value["name"]: value["value"]} if {"name", "value"} <= set(value) else value
    return [text for name, part in called.items()
            for text in ([part] if isinstance(part, str) and _SECRET.search(str(name)) else _hidden(part))]


def auth_argument_spec(env_fallback: Any) -> Dict[str, Dict[str, Any]]:
    """The connection options of a module; env_fallback is ansible.module_utils.basic's function of that name."""

    def option(env: Tuple[str, ...], **spec: Any) -> Dict[str, Any]:
        return dict(spec, fallback=(env_fallback, ["K8S_AUTH_" + name for name in env]))

    return {
        "kubeconfig": option(("KUBECONFIG",), type="raw", no_log=True),
        "context": option(("CONTEXT",), type="str"),
        "host": option(("HOST",), type="str"),
        "api_key": option(("API_KEY",), type="str", no_log=True),
        "username": option(("USERNAME",), type="str"),
        "password": option(("PASSWORD",), type="str", no_log=True),
        "validate_certs": option(("VERIFY_SSL", "VALIDATE_CERTS"), type="bool", aliases=["verify_ssl"]),
        "ca_cert": option(("SSL_CA_CERT", "CA_CERT"), type="path", aliases=["ssl_ca_cert"]),
        "client_cert": option(("CERT_FILE", "CLIENT_CERT"), type="path", aliases=["cert_file"]),
        "client_key": option(("KEY_FILE", "CLIENT_KEY"), type="path", aliases=["key_file"], no_log=False),
        "proxy": option(("PROXY",), type="str"),
        "no_proxy": option(("NO_PROXY",), type="str"),
        "proxy_headers": {
            "type": "dict",
            "options": {
                "proxy_basic_auth": option(("PROXY_HEADERS_PROXY_BASIC_AUTH",), type="str", no_log=True),
                "basic_auth": option(("PROXY_HEADERS_BASIC_AUTH",), type="str", no_log=True),
                "user_agent": option(("PROXY_HEADERS_USER_AGENT",), type="str"),
            },
        },
        "persist_config": option(("PERSIST_CONFIG",), type="bool"),
        "impersonate_user": option(("IMPERSONATE_USER",), type="str"),
        "impersonate_groups": option(("IMPERSONATE_GROUPS",), type="list", elements="str"),
    }


def _in_pod() -> bool:
    return "KUBERNETES_SERVICE_HOST" in os.environ


def describe(access: Connection) -> str:
    """The source of the connection settings, for error messages; never a secret."""
    if access.complete:
        return "the options host and credentials"
    if isinstance(access.kubeconfig, dict):
        source = "the kubeconfig given as a dictionary"
    elif access.kubeconfig:
        source = "kubeconfig %s" % access.kubeconfig
    elif _in_pod() and not access.context:
        return "the service account of this pod"
    else:
        source = "kubeconfig %s" % (os.environ.get("KUBECONFIG") or "~/.kube/config")
    return "%s, context %s" % (source, access.context) if access.context else source


def server_named(access: Connection) -> str:
    """The address of the API server that the settings lead to, found without asking anybody; '' where none can be."""
    if access.host:
        return access.host
    if _in_pod() and not (access.kubeconfig or access.context):
        return "%s:%s" % (os.environ["KUBERNETES_SERVICE_HOST"], os.environ.get("KUBERNETES_SERVICE_PORT", ""))
    try:
        parts = [access.kubeconfig] if isinstance(access.kubeconfig, dict) else _kubeconfigs(access.kubeconfig)
        context = access.context or next(filter(None, (part.get("current-context") for part in parts)))
        cluster = _entry(parts, "context", context)["cluster"]
        return str(_entry(parts, "cluster", cluster)["server"])
    # Whoever reads the nodes by these settings says what is wrong with them
    except (OSError, ValueError, TypeError, KeyError, AttributeError, StopIteration, yaml.YAMLError):
        return ""


def _kubeconfigs(paths: Optional[str]) -> List[Dict[str, Any]]:
    """The kubeconfigs that are there, of which the first that says a thing counts."""
    named = (paths or os.environ.get("KUBECONFIG") or "~/.kube/config").split(os.pathsep)
    there = [path for path in map(os.path.expanduser, named) if os.path.exists(path)]
    found = []
    for path in there:
        with open(path, encoding="utf-8") as handle:
            found.append(yaml.safe_load(handle) or {})
    return found


def _entry(parts: List[Dict[str, Any]], kind: str, name: Any) -> Dict[str, Any]:
    """What kubeconfigs say of a cluster or a context."""
    return next(each[kind] for part in parts for each in part.get(kind + "s") or () if each["name"] == name)


def _missing_files(kubeconfig: str) -> List[str]:
    paths = [os.path.expanduser(part) for part in kubeconfig.split(os.pathsep) if part]
    return [] if any(os.path.exists(path) for path in paths) else paths


def _kubeconfig_error(access: Connection, reason: str) -> GpuOpsError:
    return GpuOpsError(
        "cluster.kubeconfig_unusable",
        found="%s cannot be used: %s" % (describe(access), reason),
        wanted="a kubeconfig with a current context, or one named by `context`",
        remedy="check it with `kubectl --kubeconfig FILE config get-contexts`, and set `kubeconfig` and `context` "
        "(or `K8S_AUTH_KUBECONFIG` and `K8S_AUTH_CONTEXT`)",
        option="kubeconfig",
    )


def _load(access: Connection) -> Any:
    """The library's Configuration from a kubeconfig or from the pod we run in."""
    configuration = kubernetes.client.Configuration()
    if access.complete:
        return configuration
    if not (access.kubeconfig or access.context) and _in_pod():
        kubernetes.config.load_incluster_config(client_configuration=configuration)
        return configuration
    options = {"context": access.context, "client_configuration": configuration}
    if access.persist_config is not None:
        options["persist_config"] = access.persist_config
    if isinstance(access.kubeconfig, dict):
        kubernetes.config.load_kube_config_from_dict(config_dict=access.kubeconfig, **options)
        return configuration
    path = access.kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
    missing = _missing_files(path)
    if missing:
        raise _kubeconfig_error(access, "there is no file %s" % ", ".join(missing))
    kubernetes.config.load_kube_config(config_file=os.path.expanduser(path), **options)
    return configuration


def _configuration(access: Connection) -> Any:
    try:
        configuration = _load(access)
    except GpuOpsError:
        raise
    except kubernetes.config.ConfigException as error:
        raise _kubeconfig_error(access, str(error)) from error
    except yaml.YAMLError as error:
        raise _kubeconfig_error(access, "it is not YAML (%s)" % " ".join(str(error).split())) from error
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise _kubeconfig_error(access, "%s: %s" % (type(error).__name__, error)) from error
    _override(configuration, access)
    return configuration


def _override(configuration: Any, access: Connection) -> None:
    """Options that are given beat what the kubeconfig says."""
    if access.host:
        configuration.host = access.host.rstrip("/")
    if access.api_key:
        configuration.api_key = {"authorization": "Bearer " + access.api_key}
        configuration.refresh_api_key_hook = None
    if access.proxy_headers:
        given = {name: value for name, value in access.proxy_headers.items() if value is not None}
        configuration.proxy_headers = urllib3.util.make_headers(**given)
    settings = {
        "username": access.username,
        "password": access.password,
        "verify_ssl": access.validate_certs,
        "ssl_ca_cert": access.ca_cert,
        "cert_file": access.client_cert,
        "key_file": access.client_key,
        "proxy": access.proxy,
        "no_proxy": access.no_proxy,
    }
    for name, value in settings.items():
        if value is not None:
            setattr(configuration, name, value)


class Client:
    """One cluster, seen through one connection, which is kept open.

    What may be done twice is sent again when the server is busy or its answer was lost (repeating.py); clock and sleep
    are of these pauses. proof raises where nobody wants the answer any more; it is asked for before each request.
    """

    def __init__(self, access: Connection, clock: Callable[[], float] = time.monotonic,
                 sleep: Callable[[float], None] = time.sleep, proof: Callable[[], None] = lambda: None) -> None:
        if IMPORT_ERROR is not None:
            raise GpuOpsError(
                "cluster.library_missing",
                found="the Python library kubernetes is not there (%s)" % IMPORT_ERROR,
                wanted="kubernetes 24.2.0 or newer for the Python that runs Ansible on the controller",
                remedy="install it there: `python3 -m pip install kubernetes`",
            )
        self._access = access
        self._clock = clock
        self._sleep = sleep
        self._proof = proof
        self._answered = False
        self._ahead = timedelta(0)
        self._configuration = _configuration(access)
        self._api = kubernetes.client.ApiClient(self._configuration)
        if self._configuration.verify_ssl is False:
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)

    @property
    def url(self) -> str:
        """The API server's address."""
        return str(self._configuration.host)

    def now(self) -> datetime:
        """By the API server's clock, as its last answer has it: the one that all controllers share. Ours before."""
        return datetime.now(timezone.utc) + self._ahead

    def get(self, path: str, query: Optional[Mapping[str, Any]] = None,
            accept: str = "application/json") -> Dict[str, Any]:
        """One object or one page."""
        return self._request("GET", path, query, accept=accept)

    def find(self, path: str) -> Optional[Dict[str, Any]]:
        """One object, or None when there is none (or no such kind)."""
        try:
            return self.get(path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def items(self, path: str, keep: Optional[Callable[[Dict[str, Any]], Any]] = None,
              metadata_only: bool = False, leave_out: Sequence[str] = (), forget: Callable[[], None] = lambda: None,
              **selectors: Optional[str]) -> List[Any]:
        """Every object of a list, page by page.

        keep: what is kept of an object, None for nothing: of a large list no more than that and a page is in memory.
        leave_out: names of lists of objects inside that nobody needs; they may be empty then.
        forget: called where the list begins again, and what keep has seen counts no more.
        A list that the server forgets half-way (410: it took too long) begins again, and then in one piece.
        """
        query: Dict[str, Any] = {name: value for name, value in selectors.items() if value}
        accept = METADATA_ONLY if metadata_only else "application/json"
        try:
            with without_collection():
                return self._pages(path, dict(query, limit=PAGE_SIZE), keep, accept, leave_out)
        except ApiError as error:
            if error.status != GONE:
                raise
        forget()
        with without_collection():
            return self._pages(path, query, keep, accept, leave_out)

    def _pages(self, path: str, query: Dict[str, Any], keep: Optional[Callable[[Dict[str, Any]], Any]],
               accept: str, leave_out: Sequence[str]) -> List[Any]:
        """While one page is read, the server makes the next one: each of them takes about as long as the other."""

        def ask(following: str) -> _Beside:
            asked = dict(query, **({"continue": following} if following else {}))
            return _Beside(lambda: self._answer("GET", path, asked, accept=accept))

        found: List[Any] = []
        answer = ask("")
        while True:
            status, data, pause = answer.outcome()
            told = _GOES_ON.match(data) if status == OK else None
            guessed = told.group(1).decode() if told else ""
            if guessed:
                answer = ask(guessed)
            page = self._decode("GET", path, status, without(data, leave_out), pause)
            items = page.get("items") or []
            found.extend(items if keep is None else (kept for kept in map(keep, items) if kept is not None))
            following = (page.get("metadata") or {}).get("continue") or ""
            # Of the text and of the parsed page nothing is left while the next one is parsed
            del data, page, items
            if not following:
                return found
            if following != guessed:
                answer = ask(following)

    def patch(self, path: str, body: Dict[str, Any], dry_run: bool = False) -> Dict[str, Any]:
        """A JSON merge patch; a null removes a key.

        One that names the version that it is of may be sent again: done already, it is answered as a conflict.
        """
        harmless = dry_run or bool((body.get("metadata") or {}).get("resourceVersion"))
        return self._request("PATCH", path, _dry_run(dry_run), body, MERGE_PATCH,
                             repetition=ALWAYS if harmless else UNDONE)

    def apply(self, path: str, body: Dict[str, Any], dry_run: bool = False,
              manager: str = FIELD_MANAGER) -> Dict[str, Any]:
        """Server-side apply: the object as it is then. What the body says becomes the manager's, whoever had it; what
        an earlier apply of his said and this one does not is removed, unless somebody else says it too.

        One that names the version that it is of is answered as a conflict where another writer came first.
        """
        query = {"fieldManager": manager, "force": "true", **(_dry_run(dry_run) or {})}
        versioned = bool((body.get("metadata") or {}).get("resourceVersion"))
        return self._request("PATCH", path, query, body, SERVER_SIDE_APPLY, repetition=ALWAYS if versioned else MERGED)

    def create(self, path: str, body: Dict[str, Any], dry_run: bool = False, repetition: Optional[Repetition] = None,
               proof: Callable[[], None] = lambda: None) -> Dict[str, Any]:
        """A new object or subresource, once unless the caller knows that a second one does no harm.

        proof: raises where it is not to be sent any more; asked for each time that it is.
        """
        return self._request("POST", path, _dry_run(dry_run), body, repetition=repetition, proof=proof)

    def ask(self, path: str, body: Dict[str, Any]) -> Dict[str, Any]:
        """A question that is posted and leaves nothing behind, as a review of rights."""
        return self._request("POST", path, body=body, repetition=ALWAYS)

    def delete(self, path: str, uid: Optional[str] = None, propagation: str = "Foreground",
               grace: Optional[int] = None, version: Optional[str] = None,
               proof: Callable[[], None] = lambda: None) -> Dict[str, Any]:
        """Begin to remove an object; one that is not there is removed.

        uid: only the object with this one; another that has taken its name since stays, without an error.
        propagation: Foreground keeps the object until all that it owns is gone.
        grace: seconds that a pod gets to end; None for its own.
        version: of the object with this uid, only this one; another stays, without an error.
        proof: of one with a uid; as of create().
        """
        if uid is None:
            return self._request("DELETE", path)
        body: Dict[str, Any] = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": propagation,
                                "preconditions": {"uid": uid, **({"resourceVersion": version} if version else {})}}
        if grace is not None:
            body["gracePeriodSeconds"] = grace
        try:
            return self._request("DELETE", path, body=body, repetition=ALWAYS, proof=proof)
        except ApiError as error:
            if error.status in (404, 409):
                return {}
            raise

    def _headers(self, content_type: Optional[str], accept: str) -> Dict[str, str]:
        headers = {"Accept": accept, "User-Agent": "gpuops.nvidia"}
        if content_type:
            headers["Content-Type"] = content_type
        for setting in self._configuration.auth_settings().values():
            if setting.get("in") == "header" and setting.get("value"):
                headers[setting["key"]] = setting["value"]
        if self._access.username and self._access.password:
            headers["authorization"] = self._configuration.get_basic_auth_token()
        return headers

    def _impersonation(self) -> List[Tuple[str, str]]:
        user = [("Impersonate-User", self._access.impersonate_user)] if self._access.impersonate_user else []
        return user + [("Impersonate-Group", group) for group in self._access.impersonate_groups]

    def _request(self, method: str, path: str, *arguments: Any, **options: Any) -> Dict[str, Any]:
        """The object that answers; see _answer."""
        return self._decode(method, path, *self._answer(method, path, *arguments, **options))

    def _answer(
        self,
        method: str,
        path: str,
        query: Optional[Mapping[str, Any]] = None,
        body: Optional[Dict[str, Any]] = None,
        content_type: str = "application/json",
        accept: str = "application/json",
        repetition: Optional[Repetition] = None,
        proof: Callable[[], None] = lambda: None,
    ) -> Tuple[int, bytes, Optional[float]]:
        """Status, text, and the seconds after which one may ask again.

        repetition: of a method that says nothing, GET is repeated and nothing else.
        proof: beside that of the client, of this request; it may ask the server itself.
        """
        attempts = Attempts(repetition or (ALWAYS if method == "GET" else Repetition()), self._clock, self._sleep)
        url = self.url + path + ("?" + urlencode(query) if query else "")
        data = None if body is None else json.dumps(body)
        while True:
            self._proof()
            proof()
            headers = urllib3.HTTPHeaderDict(self._headers(content_type if body is not None else None, accept))
            for name, value in self._impersonation():
                headers.add(name, value)
            try:
                answer = self._api.rest_client.pool_manager.request(
                    method,
                    url,
                    body=data,
                    headers=headers,
                    timeout=urllib3.Timeout(connect=CONNECT_TIMEOUT_S, read=READ_TIMEOUT_S),
                    retries=False,
                )
            except (urllib3.exceptions.HTTPError, OSError) as error:
                # Who has never let us in is not there, or not for us: no use in waiting.
                if (self._answered or not _no_connection(error)) and attempts.again_lost():
                    continue
                raise self._unreachable(error) from error
            except ValueError:
                # The library's words show the header, and so does the cause
                raise self._unsendable() from None
            self._answered = True
            self._ahead = _ahead(answer.headers.get("Date"))
            if not attempts.again_after(answer.status, answer.headers):
                return answer.status, answer.data, retry_after(answer.headers)

    def _decode(self, method: str, path: str, status: int, data: bytes, pause: Optional[float]) -> Dict[str, Any]:
        try:
            content = json.loads(data) if data else {}
        except ValueError:
            content = None
        if status >= 400:
            # the API server answers a path of an unknown API group, and whom it has no time for, in plain text
            told = content if isinstance(content, dict) else {"message": data.decode("utf-8", "replace").strip()}
            error = self._refused(method, path, status, _message(told))
            error.causes = tuple(str(cause.get("reason") or "") for cause in _causes(told))
            error.retry_after = pause
            raise error
        if not isinstance(content, dict):
            raise GpuOpsError(
                "cluster.no_api_server",
                found="%s answered %s %s with HTTP %d and no JSON object" % (self.url, method, path, status),
                wanted="a Kubernetes API server",
                remedy="check the address in %s" % describe(self._access),
            )
        return content

    def _unreachable(self, error: BaseException) -> GpuOpsError:
        return GpuOpsError(
            "cluster.no_answer",
            found="the Kubernetes API server %s, taken from %s, does not answer: %s"
            % (self.url, describe(self._access), error),
            wanted="a connection to the API server from the Ansible controller",
            remedy="check the address, the network and the certificates, or name another cluster with `kubeconfig` "
            "and `context` (or `K8S_AUTH_KUBECONFIG` and `K8S_AUTH_CONTEXT`)",
            option="kubeconfig",
        )

    def _unsendable(self) -> GpuOpsError:
        return GpuOpsError(
            "cluster.credentials_unusable",
            found="the credentials in %s cannot be sent: they have a line break in them, or letters that HTTP lacks"
            % describe(self._access),
            wanted="a token or password of one line of ASCII",
            remedy="correct it; where it was read from a file or a Secret, take the line break at its end away",
        )

    def _refused(self, method: str, path: str, status: int, message: str) -> ApiError:
        source = describe(self._access)
        found = "the Kubernetes API server %s answered %s %s with HTTP %d%s" % (
            self.url, method, path, status, ": " + message if message else "")
        if status == 401:
            return ApiError("cluster.credentials_refused", status, message, found, "credentials that the server takes",
                            "check the credentials in %s" % source)
        if status == 403 and _OF_ADMISSION.search(message):
            return ApiError("cluster.denied_by_admission", status, message, found,
                            "a request that the cluster's own rules let through",
                            "change the policy, the quota or the limits that the message names, or what is asked for")
        if status == 403:
            return ApiError("cluster.right_missing", status, message, found, "the right to " + right_of(method, path),
                            "grant this user the right, or use other credentials than those in %s" % source)
        return ApiError("cluster.request_refused", status, message, found,
                        "this request to be allowed and its object to be there",
                        "read the server's message; %s names the cluster" % source)


class _Beside:
    """A call that runs beside its caller, who is not held up where he gives up before its end."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._ended: "queue.SimpleQueue[Tuple[Any, Optional[BaseException]]]" = queue.SimpleQueue()
        threading.Thread(target=self._run, args=(call,), daemon=True).start()

    def _run(self, call: Callable[[], Any]) -> None:
        try:
            self._ended.put((call(), None))
        except BaseException as error:
            self._ended.put((None, error))

    def outcome(self) -> Any:
        """What it returned, or the error that it ended in; for one caller, once."""
        returned, error = self._ended.get()
        if error is not None:
            raise error
        return returned


def is_outage(error: GpuOpsError) -> bool:
    """Whether an error is of a server that is not to be had just now, and says nothing of who asks or what for.

    A certificate that does not fit is none: it may be another server that answers.
    """
    if isinstance(error, ApiError):
        return error.status in PASSING
    return error.code == NO_ANSWER and not isinstance(error.__cause__, urllib3.exceptions.SSLError)


def _no_connection(error: BaseException) -> bool:
    """Whether there was not even a connection: nobody listens, nobody answers the call, or certificates differ."""
    errors = urllib3.exceptions
    return isinstance(error, (errors.NewConnectionError, errors.ConnectTimeoutError, errors.ProxyError,
                              errors.SSLError))


def right_of(method: str, path: str) -> str:
    """The verb and the resource that a request needs, as RBAC names them: 'list daemonsets.apps'."""
    _empty, root, *parts = path.split("/")
    group = parts[0] if root == "apis" and parts else ""
    inside = parts[2:] if root == "apis" else parts[1:]
    place = ""
    if len(inside) > 2 and inside[0] == "namespaces":
        place, inside = " in namespace %s" % inside[1], inside[2:]
    verb = {"GET": "get" if len(inside) > 1 else "list", "PATCH": "patch", "POST": "create", "DELETE": "delete"}[method]
    resource = "/".join(inside[:1] + inside[2:]) or path
    return "%s %s%s%s" % (verb, resource, "." + group if group else "", place)


def _ahead(date: Optional[str]) -> timedelta:
    """By how much the clock that an answer is dated by is ahead of ours (RFC 9110, 6.6.1)."""
    try:
        told = parsedate_to_datetime(date or "") - datetime.now(timezone.utc)
    except (TypeError, ValueError):
        return timedelta(0)
    return told if abs(told) > SAME_CLOCK else timedelta(0)


def _dry_run(dry_run: bool) -> Optional[Dict[str, str]]:
    return {"dryRun": "All"} if dry_run else None


def _message(content: Mapping[str, Any]) -> str:
    """The server's words, with the causes that it names, such as the disruption budget that blocks an eviction."""
    words = [content.get("message")] + [cause.get("message") for cause in _causes(content)]
    return " ".join(dict.fromkeys(str(word) for word in words if word))


def _causes(content: Mapping[str, Any]) -> List[Mapping[str, Any]]:
    return list((content.get("details") or {}).get("causes") or ())
