"""Determines which pods of a job can have ranks, from the cluster's API."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

INTERVAL_S = 1.0
_TIMEOUT_S = 10.0  # for an answer of the API


class ClusterError(RuntimeError):
    """The cluster's API can't be queried. The message is for the user."""


class Pods:
    """Lists the pods with some labels in a namespace."""

    def __init__(self, selector: str, namespace: str | None = None) -> None:
        """Find the cluster of this pod, or else kubectl's.

        Raises ClusterError if there is none, or no client for it.
        """
        try:
            from kubernetes import client, config
            from kubernetes.config.config_exception import ConfigException
        except ImportError as error:
            raise ClusterError(
                f"horoscale.kubernetes needs Kubernetes' client, which is not there ({error}): "
                "pip install 'horoscale[kubernetes]'"
            ) from error
        own = None
        try:
            config.load_incluster_config()
            with open(
                "/var/run/secrets/kubernetes.io/serviceaccount/namespace", encoding="utf-8"
            ) as file:
                own = file.read().strip()
        except (ConfigException, OSError):
            try:
                config.load_kube_config()
                _, active = config.list_kube_config_contexts()
                own = active["context"].get("namespace")
            except (ConfigException, OSError) as error:
                raise ClusterError(
                    f"there is no cluster: this is no pod with a service account, and {error}"
                ) from error
        self.selector = selector
        self.namespace = namespace or own or "default"
        self._api = client.CoreV1Api()
        self._error: type[Exception] = client.ApiException

    def usable(self) -> set[str]:
        """Return the names of the pods that are ready and not terminating.

        Raises ClusterError if the API does not answer.
        """
        try:
            found = self._api.list_namespaced_pod(
                self.namespace, label_selector=self.selector, _request_timeout=_TIMEOUT_S
            )
        except self._error as error:
            status, reason = getattr(error, "status", "?"), getattr(error, "reason", error)
            hint = "; the service account needs the right to list pods" if status == 403 else ""
            raise ClusterError(
                f"pods of {self.selector} in {self.namespace}: {status} {reason}{hint}"
            ) from error
        except Exception as error:  # the client's HTTP library documents no exception types
            raise ClusterError(f"the cluster's API does not answer: {error}") from error
        return {pod.metadata.name for pod in found.items if _is_usable(pod)}


class PodWatch:
    """Queries the API once a second, in a thread, and reports changes of the pods."""

    def __init__(
        self, pods: Pods, on_pods: Callable[[set[str]], None], on_error: Callable[[str], None]
    ) -> None:
        """Start. A persistent error is reported once, and the last known pods are kept."""
        self._pods, self._on_pods, self._on_error = pods, on_pods, on_error
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="horoscale-pods", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop."""
        self._ended.set()

    def _run(self) -> None:
        known: set[str] | None = None
        told: str | None = None
        while not self._ended.is_set():
            try:
                found = self._pods.usable()
                if found != known:
                    self._on_pods(found)
                known, told = found, None
            except ClusterError as error:
                if str(error) != told:
                    told = str(error)
                    self._on_error(told)
            self._ended.wait(INTERVAL_S)


def _is_usable(pod: Any) -> bool:
    if pod.metadata.deletion_timestamp is not None or pod.status.phase != "Running":
        return False
    conditions = {one.type: one.status for one in pod.status.conditions or []}
    return conditions.get("Ready") == "True" and conditions.get("DisruptionTarget") != "True"
