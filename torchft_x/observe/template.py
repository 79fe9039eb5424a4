"""The template of the live page and of reports, one HTML file. Its script draws what it gets.

The lighthouse serves the template as it is, and its script asks for `/status.json`. A report's data is inside the file.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from torchft_x.observe.console import harmless

_DATA = '<script type="application/json" id="run">'
_HEAD = '<meta charset="utf-8">'
_LONGEST = 600  # characters of a text


@cache
def live() -> tuple[bytes, str]:
    """Return the live page, and the policy that lets a browser run only the page's own script and style."""
    body, policy = _template()
    return body.encode(), f"{policy}; connect-src 'self'; frame-ancestors 'none'"


def report(data: dict[str, Any]) -> str:
    """Return a page that shows `data` and reaches no address."""
    body, policy = _template()
    text = json.dumps(_harmless(data), separators=(",", ":")).replace("<", "\\u003c")
    body = body.replace(_HEAD, f'{_HEAD}\n<meta http-equiv="Content-Security-Policy" content="{policy}">', 1)
    return body.replace(_DATA, _DATA + text, 1)


@cache
def _template() -> tuple[str, str]:
    body = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    (script,), (style,) = (re.findall(f"<{tag}>(.*?)</{tag}>", body, re.DOTALL) for tag in ("script", "style"))
    sources = f"script-src {_digest(script)}; style-src {_digest(style)}; img-src data:"
    return body, f"default-src 'none'; {sources}; base-uri 'none'; form-action 'none'"


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _harmless(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _harmless(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_harmless(item) for item in value]
    return harmless(value, _LONGEST) if isinstance(value, str) else value
