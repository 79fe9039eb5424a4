"""Answers to HTTP requests: the page, `/status.json`, `/metrics`, `/healthz`, `/readyz`, and the three orders.

Every web site that a browser visits can send requests to the page. So a request must name this host by an address, by
`localhost` or by a name of its own, because a foreign name may resolve to this host (DNS rebinding). A request that
changes something must carry the token in a header, which no other site can make a browser send.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Callable, Collection, Mapping

from torchft_x.errors import RefusedError, TorchftXError
from torchft_x.observe import template
from torchft_x.rpc.lighthouse.page.http import Request, Response
from torchft_x.rpc.lighthouse.page.orders import OrderDesk
from torchft_x.rpc.lighthouse.page.recorder import Recorder
from torchft_x.rpc.transport.limits import check_name
from torchft_x.rpc.transport.token import is_allowed

TOKEN_HEADER = "x-torchft-x-token"
"""Header for the token where a proxy uses Authorization, as Kubernetes' API server does. No other site can make a
browser send it."""
_JSON = "application/json"
_ORDERS = ("/kill", "/drain", "/resume")


class Routes:
    """Router of HTTP requests. `names`: this host's. `serves` returns whether the lighthouse may answer groups."""

    def __init__(
        self,
        recorder: Recorder,
        orders: OrderDesk,
        *,
        token: str | None,
        names: Collection[str],
        serves: Callable[[], bool],
    ) -> None:
        self._recorder = recorder
        self._orders = orders
        self._token = token
        self._names = frozenset(name.lower() for name in names)
        self._serves = serves

    async def answer(self, request: Request) -> Response:
        """Answer a request. No request can make this raise."""
        if not is_own_host(request.headers.get("host", ""), self._names):
            return _text(
                421, "The request names another host than this one: open the page by its address or localhost."
            )
        if request.path in _ORDERS:
            return await self._order(request)
        answers = {
            "/": self._page,
            "/status.json": lambda: Response(200, self._recorder.bytes(), _JSON),
            "/metrics": self._metrics,
            "/healthz": lambda: _text(200, "ok"),
            "/readyz": lambda: _text(200, "ok") if self._serves() else _text(503, "This lighthouse does not serve."),
        }
        if request.path not in answers:
            return _text(404, f"There is nothing here; there are {', '.join((*answers, *_ORDERS))}.")
        if request.method not in ("GET", "HEAD"):
            return _text(405, "GET it.", {"Allow": "GET, HEAD"})
        return answers[request.path]()

    def _page(self) -> Response:
        body, policy = template.live()
        return Response(200, body, "text/html; charset=utf-8", {"Content-Security-Policy": policy})

    def _metrics(self) -> Response:
        try:
            from torchft_x.rpc.lighthouse.page import metrics  # loaded only on request
        except ImportError as e:
            return _text(501, f"A package is not installed ({e}): pip install prometheus-client.")
        return Response(200, metrics.text(self._recorder), metrics.KIND)

    async def _order(self, request: Request) -> Response:
        if request.method != "POST":
            return _text(405, "POST it.", {"Allow": "POST"})
        if self._token is None:
            return _error(403, "This lighthouse has no token, so it takes no orders. Start it with --token_file.")
        if not has_token(request.headers, self._token):
            return _error(401, "The run's token is wrong or missing.", {"WWW-Authenticate": "Bearer"})
        try:
            asked = json.loads(request.body)
            group = asked.get("group") if isinstance(asked, dict) else None
            if not isinstance(group, str):
                return _error(400, 'The body must be {"group": "NAME"}.')
            sentence = await self._orders.give(request.path[1:], check_name(group))
        except (ValueError, RecursionError) as e:
            return _error(400, str(e) if isinstance(e, TorchftXError) else 'The body must be {"group": "NAME"}.')
        except RefusedError as e:
            return _error(409, str(e))
        except TorchftXError as e:
            return _error(502, str(e))
        return Response(200, json.dumps({"done": sentence}).encode(), _JSON)


def _text(status: int, sentence: str, headers: dict[str, str] | None = None) -> Response:
    return Response(status, f"{sentence}\n".encode(), headers=headers or {})


def _error(status: int, sentence: str, headers: dict[str, str] | None = None) -> Response:
    return Response(status, json.dumps({"error": sentence}).encode(), _JSON, headers or {})


def is_own_host(header: str, names: Collection[str]) -> bool:
    """Return whether a request's Host is an IP address, the local host, or one of these names (in lower case)."""
    host = header.strip().lower()
    if host.startswith("["):
        host = host[1:].partition("]")[0]
    elif host.count(":") == 1:
        host = host.partition(":")[0]
    host = host.rstrip(".")
    if host == "localhost" or host.endswith(".localhost") or host in names:
        return bool(host)
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def has_token(headers: Mapping[str, str], token: str | None) -> bool:
    """Return whether a request's headers carry the token. False if there is no token."""
    own = headers.get(TOKEN_HEADER)
    header = f"Bearer {own}" if own is not None else headers.get("authorization")
    return token is not None and header is not None and is_allowed([("authorization", header)], token)
