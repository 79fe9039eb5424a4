"""What a token may look like and who passes."""

from __future__ import annotations

import pytest

from torchft_x.errors import ConfigError
from torchft_x.rpc.transport import token


def test_a_token_passes_and_every_other_is_refused() -> None:
    good = token.metadata("secret")
    assert token.is_allowed(good, "secret")
    assert token.is_allowed([("authorization", b"Bearer secret")], "secret")
    for sent in [(), None, token.metadata("secreT"), token.metadata("secret "), [("authorization", "secret")]]:
        assert not token.is_allowed(sent, "secret")
    assert token.is_allowed(token.metadata(None), None)  # there is none


@pytest.mark.parametrize("bad", ["", "two words", "new\nline", "ü", "x" * (token.MAX_TOKEN + 1)])
def test_a_token_that_cannot_be_a_header_is_refused_without_showing_it(bad: str) -> None:
    with pytest.raises(ConfigError) as e:
        token.check_token(bad)
    assert not bad or bad not in str(e.value)
    assert token.check_token("abc-_.~") == "abc-_.~"
    assert token.check_token(None) is None
