"""No claim is believed alone, and none against more than speak for what is stored."""

from __future__ import annotations

import pytest

from recover.log.judge import Claim, believed


@pytest.mark.parametrize(("claims", "told"), [
    ([], "here"),
    ([Claim("unit", "there")], "here"),
    ([Claim("unit", "there"), Claim("neighbours", "there")], "there"),
    ([Claim("unit", "there"), Claim("neighbours", "there"), Claim("record", "here", 3)], "here"),
    ([Claim("unit", "there", 2), Claim("record", "elsewhere", 2)], "here"),
    ([Claim("unit", "there", 3), Claim("record", "elsewhere", 2), Claim("name", "here")], "there"),
])
def test_two_claims_or_more_than_for_what_is_stored(claims: list[Claim[str]], told: str) -> None:
    assert believed(claims, "here") == told
