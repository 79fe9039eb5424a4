"""Client of a cluster's API server, over the official client: raw JSON in and out, errors as one sentence each."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
from collections.abc import Generator, Iterator
from typing import Any

from torchft_x import env
from torchft_x.errors import ConfigError, TorchftXError
from torchft_x.launch.kubernetes.rules import names

Json = dict[str, Any]
_Objects = list[Json]  # an alias, because `list` is a method in `Cluster`

_TIMEOUT = (5.0, 30.0)  # seconds: to connect, and between two reads
_FORBIDDEN = re.compile(r'cannot (\w+) resource "([^"]+)" in API group "([^"]*)"')
# Kind -> the client's class, and the kind's name in its methods.
_KINDS = {
    "Job": ("BatchV1Api", "job"),
    "Secret": ("CoreV1Api", "secret"),
    "Service": ("CoreV1Api", "service"),
    "NetworkPolicy": ("NetworkingV1Api", "network_policy"),
    "PodDisruptionBudget": ("PolicyV1Api", "pod_disruption_budget"),
    "Pod": ("CoreV1Api", "pod"),
    "log": ("CoreV1Api", "pod_log"),
    "Event": ("CoreV1Api", "event"),
    "ConfigMap": ("CoreV1Api", "config_map"),
}


class ClusterError(TorchftXError):
    """Error: the cluster can't be reached, or has refused a request.

    `status` is HTTP's status, 0 without an answer. `answer` is the body of an answer that is not the API server's own.
    """

    exit_code = 1

    def __init__(self, sentence: str, status: int = 0, answer: Any = None) -> None:
        super().__init__(sentence)
        self.status = status
        self.answer = answer


class Cluster:
    """Client for one namespace of a cluster. The constructor makes no connection.

    It raises `ConfigError` if no cluster is configured. All methods raise `ClusterError`.
    """

    def __init__(self, context: str | None = None, namespace: str | None = None) -> None:
        config, client = _package("kubernetes.config"), _package("kubernetes.client")
        settings = client.Configuration()
        files = env.read(env.KUBECONFIG) or os.path.expanduser("~/.kube/config")
        self._at = files
        if not any(os.path.exists(path) for path in files.split(os.pathsep)):
            raise ConfigError(
                f"no cluster is configured here: {files} does not exist; set {env.KUBECONFIG} to your kubeconfig."
            )
        try:
            config.load_kube_config(config_file=files, context=context, client_configuration=settings)
            own = _namespace(config, files, context)
        except config.ConfigException as e:
            raise ConfigError(f"the kubeconfig {files} can't be used: {str(e).splitlines()[0].rstrip('.')}.") from None
        settings.retries = False
        self.namespace = namespace or own or "default"
        names.check(self.namespace, f"-cfg namespace={self.namespace}")
        self._client = client
        self._api = client.ApiClient(settings)

    def create(self, body: Json) -> Json:
        return self._ask(body["kind"], "create_namespaced", "", body=body)

    def list(self, kind: str, selector: str) -> _Objects:
        """Return the objects with these labels, in the API server's newest version."""
        return self.list_at(kind, selector)[0]

    def warnings(self) -> _Objects:
        """Return the namespace's events of type Warning, or none if the user may not list events."""
        try:
            return list(self._ask("Event", "list_namespaced", "", field_selector="type=Warning")["items"])
        except ClusterError as e:
            if e.status != 403:
                raise
            return []

    def list_at(self, kind: str, selector: str) -> tuple[_Objects, str]:
        """Return the objects with these labels, and the version of the list."""
        found = self._ask(kind, "list_namespaced", "", label_selector=selector)
        return list(found["items"]), str(found.get("metadata", {}).get("resourceVersion", ""))

    def wait_for_change(self, kind: str, selector: str, version: str, seconds: int) -> bool:
        """Wait until one of these objects is created, changed or deleted after the list of that `version`, by one watch.

        Return False if none is within `seconds`, if the connection ends, or if the user may not watch them.
        """
        watch = {"label_selector": selector, "resource_version": version, "watch": True, "timeout_seconds": seconds}
        limits = (_TIMEOUT[0], seconds + _TIMEOUT[1])
        try:
            answer = self._open(kind, "list_namespaced", "", _request_timeout=limits, **watch)
        except ClusterError as e:
            if e.status not in (403, 410):  # 410: the version is too old
                raise
            return False
        with contextlib.closing(_chunks(answer, 1024)) as chunks:
            return bool(next(chunks, b""))

    def delete(self, kind: str, name: str, *, at_once: bool = False) -> bool:
        """Delete an object and, in the background, all objects that it owns. Return whether it existed.

        `at_once` skips a pod's grace period.
        """
        grace = {"grace_period_seconds": 0} if at_once else {}
        try:
            self._ask(kind, "delete_namespaced", name, propagation_policy="Background", **grace)
        except ClusterError as e:
            if e.status == 404:
                return False
            raise
        return True

    def read(self, kind: str, name: str) -> Json:
        return self._ask(kind, "read_namespaced", name)

    def patch(self, kind: str, name: str, body: Json) -> Json:
        """Merge `body` into an object, and return it."""
        return self._ask(kind, "patch_namespaced", name, body=body)

    def page(
        self, service: str, path: str, *, body: Json | None = None, token: str | None = None
    ) -> tuple[int, Json | str]:
        """Send a request to a service's page through the API server. Return HTTP's status, and JSON or text.

        The request is a GET, or a POST if there is a body. Raise `ClusterError` if the API server itself refuses it.
        """
        try:
            return self._ask_page(f"{service}:page", path, body, token)
        except ClusterError as e:
            if "no endpoints" not in str(e):
                raise
            try:  # the job has --tls, or its lighthouse is not ready
                return self._ask_page(f"https:{service}:{names.TLS_PAGE}", path, body, token)
            except ClusterError:
                raise e from None

    def _ask_page(self, service: str, path: str, body: Json | None, token: str | None) -> tuple[int, Json | str]:
        at = f"/api/v1/namespaces/{self.namespace}/services/{service}/proxy{path}"
        headers = {"Accept": "*/*"} if body is None else {"Accept": "*/*", "Content-Type": "application/json"}
        headers |= {} if token is None else {"X-Torchft-X-Token": token}
        options = {"auth_settings": ["BearerToken"], "_preload_content": False, "_return_http_data_only": True}
        for host in ({}, {"Host": "localhost"}):  # the program may refuse the API server's name (421)
            try:
                answer = self._call(self._api.call_api, at, "GET" if body is None else "POST", body=body,
                                    header_params={**headers, **host}, _request_timeout=_TIMEOUT, **options)  # fmt: skip
                status, data = int(answer.status), answer.data
            except ClusterError as e:
                if e.answer is None:
                    raise
                status, data = e.status, e.answer
            if status != 421:
                break
        return status, _decoded(data)

    def log(self, pod: str, container: str, **options: Any) -> Iterator[bytes]:
        """Yield chunks of a container's log; with ``follow=True`` until the container ends or prints nothing for 30 s."""
        answer = self._open("log", "read_namespaced", pod, container=container, _request_timeout=_TIMEOUT, **options)
        yield from _chunks(answer, 16384)

    def _ask(self, kind: str, verb: str, name: str, **options: Any) -> Json:
        found: Json = json.loads(self._open(kind, verb, name, _request_timeout=_TIMEOUT, **options).data)
        return found

    def _open(self, kind: str, verb: str, name: str, **options: Any) -> Any:
        """Return the answer to a request, of which no data is read yet."""
        api, noun = _KINDS[kind]
        method = getattr(getattr(self._client, api)(self._api), f"{verb}_{noun}")
        words = [name, self.namespace] if name else [self.namespace]
        return self._call(method, *words, _preload_content=False, **options)

    def _call(self, method: Any, *words: str, **options: Any) -> Any:
        exceptions = _package("kubernetes.client.exceptions")
        try:
            return method(*words, **options)
        except exceptions.ApiException as e:
            if not e.status:
                raise ClusterError(f"the cluster of {self._at} can't be reached: {e.reason}") from None
            found = _decoded(e.body)
            message = str(found.get("message", "")) if isinstance(found, dict) else ""
            raise ClusterError(
                refusal(e.status, message or str(e.reason), self.namespace), e.status, None if message else e.body
            ) from None
        except Exception as e:
            if not type(e).__module__.startswith("urllib3"):
                raise
            reason = getattr(e, "reason", None) or e
            raise ClusterError(f"the cluster of {self._at} can't be reached: {str(reason).rstrip('.')}.") from None


def refusal(status: int, message: str, namespace: str) -> str:
    """Return the API server's refusal as a sentence with advice."""
    message = message.rstrip(".")
    forbidden = _FORBIDDEN.search(message)
    if status == 403 and forbidden:
        verb, resource, group = forbidden.groups()
        rule = f'- {{apiGroups: ["{group}"], resources: ["{resource}"], verbs: ["{verb}"]}}'
        return (
            f"the cluster doesn't let you {verb} {resource} in the namespace {namespace}; the Role that is bound to you "
            f"needs the rule `{rule}` (docs/kubernetes.md has all of them)."
        )
    if status == 403 and "quota" in message:
        return f"the namespace {namespace} has no room for it: {message}; ask for less, or for more quota."
    if status == 401:
        return "the cluster doesn't know you (401): log in again, or look at the user of the kubeconfig's context."
    if status == 404 and "namespaces" in message:
        return f"the cluster has no namespace {namespace}; make it, or name another one with -cfg namespace=."
    if status == 409:
        return f"the cluster has it already: {message}."
    return f"the cluster refuses it ({status}): {message}."


def _chunks(answer: Any, size: int) -> Generator[bytes, None, None]:
    """Yield the data of an answer until the other side or the connection ends. The connection is not reused."""
    try:
        yield from answer.stream(size, decode_content=False)
    except Exception as e:
        if not type(e).__module__.startswith("urllib3"):
            raise
    finally:
        answer.close()


def _decoded(data: Any) -> Json | str:
    text = data.decode("utf-8", "replace") if isinstance(data, bytes) else str(data)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return found if isinstance(found, dict) else text


def _namespace(config: Any, files: str, context: str | None) -> str | None:
    contexts, active = config.list_kube_config_contexts(config_file=files)
    chosen = next((c for c in contexts if c["name"] == context), active)
    found = (chosen or {}).get("context", {}).get("namespace")
    return None if found is None else str(found)


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ConfigError(
            "kubernetes_ft asks the cluster with the package kubernetes, which is not installed here: pip install kubernetes."
        ) from None
