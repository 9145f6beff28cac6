"""A site that was let go, refused or doubled is told so; strangers are told nothing of others."""

import pytest

from trimtab.federation.storage import keys
from trimtab.federation.storage.roster import Roster
from trimtab.federation.transport.flower import notices
from trimtab.federation.transport.flower.notices import Notices

ROME, OSLO, GONE = (keys.make_site_key() for _ in range(3))
ROSTER = Roster(
    {"rome": ROME[1], "oslo": OSLO[1]}, (), {keys.fingerprint(GONE[1]): "lima was let go"}
)


@pytest.fixture
def told():
    return Notices(lambda: ROSTER)


def test_who_is_not_let_in_is_told_why_if_it_holds_its_key(told):
    gone = GONE[1].encode()
    assert told.of_stranger(gone, lambda: True) == (
        "the server lets this site in no more: lima was let go."
    )
    assert told.of_stranger(gone, lambda: False) == ""
    stranger = keys.make_site_key()[1]
    said = told.of_stranger(stranger.encode(), lambda: False)
    assert keys.fingerprint(stranger) in said
    assert "let the operator register it" in said


def test_two_copies_at_one_time_are_both_told_and_one_after_the_other_is_not(told, monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr(notices.time, "monotonic", lambda: clock[0])

    def said(copy, address):
        clock[0] += 1
        return told.of_site("rome", copy, address)

    assert said("first", "1.2.3.4") == ""
    assert said("second", "5.6.7.8") == ""  # the first may have ended
    assert "another copy of this site is running, at 5.6.7.8" in said("first", "1.2.3.4")
    assert "another copy of this site is running, at 1.2.3.4" in said("second", "5.6.7.8")
    assert told.of_site("oslo", "third", "1.2.3.4") == ""
    assert said("", "9.9.9.9") == ""  # a stock SuperNode says no word
    clock[0] += 61  # the second has ended
    assert said("first", "1.2.3.4") == ""
    for copy in range(50):
        said(str(copy), "1.2.3.4")
    assert len(told._copies["rome"]) <= 8
