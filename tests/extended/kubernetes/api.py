"""JSON over HTTPS to an API server: the calls that a node needs, without the weight of the official client."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import urlencode


class ApiError(Exception):
    """Answer of the server with an error status, in `status`."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text[:500]}")
        self.status = status


class Api(NamedTuple):
    """Client of an API server.

    Each request uses a connection of its own, so that a restart of the server needs no handling.
    """

    host: str
    port: int
    certificate: str  # file with the server's own certificate
    token: str

    def get(self, path: str, **query: Any) -> Any:
        return self.request("GET", path, query=query)

    def post(self, path: str, body: Any) -> Any:
        return self.request("POST", path, body=body)

    def patch(self, path: str, body: Any) -> Any:
        """Merge `body` into an object."""
        return self.request("PATCH", path, body=body)

    def delete(self, path: str, body: Any = None) -> Any:
        return self.request("DELETE", path, body=body)

    def request(self, verb: str, path: str, body: Any = None, query: dict[str, Any] | None = None) -> Any:
        """Return the answer as a value, or as text if it isn't JSON.

        Raise `ApiError` for an error status, and `OSError` if no server answers.
        """
        connection = self._connection(timeout=10)
        try:
            answer = self._ask(connection, verb, path, body, query)
            text = answer.read().decode(errors="replace")
        except http.client.HTTPException as e:
            raise ConnectionError(f"{verb} {path}: {e!r}") from e
        finally:
            connection.close()
        if answer.status >= 400:
            raise ApiError(answer.status, text)
        return json.loads(text) if "json" in (answer.headers["Content-Type"] or "") else text

    def watch(self, path: str, seconds: float = 30, **query: Any) -> Iterator[dict[str, Any]]:
        """Yield events until the server ends the watch, after `seconds` at the latest. Raise as `request` does."""
        connection = self._connection(timeout=seconds + 5)
        try:
            query = {**query, "watch": "true", "timeoutSeconds": int(seconds)}
            answer = self._ask(connection, "GET", path, None, query)
            if answer.status >= 400:
                raise ApiError(answer.status, answer.read().decode(errors="replace"))
            for line in answer:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise ApiError(event["object"].get("code", 500), str(event["object"].get("message")))
                yield event
        except (http.client.HTTPException, ValueError) as e:
            raise ConnectionError(f"watch of {path}: {e!r}") from e
        finally:
            connection.close()

    def _connection(self, timeout: float) -> http.client.HTTPSConnection:
        context = ssl.create_default_context(cafile=self.certificate)
        return http.client.HTTPSConnection(self.host, self.port, timeout=timeout, context=context)

    def _ask(
        self, connection: http.client.HTTPSConnection, verb: str, path: str, body: Any, query: Any
    ) -> http.client.HTTPResponse:
        target = path + (f"?{urlencode(query)}" if query else "")
        headers = {"Authorization": f"Bearer {self.token}", "Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = f"application/{'merge-patch+json' if verb == 'PATCH' else 'json'}"
        connection.request(verb, target, None if body is None else json.dumps(body), headers)
        return connection.getresponse()
