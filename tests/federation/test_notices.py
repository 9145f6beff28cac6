"""A site that was let go, refused or doubled is told so; strangers are told nothing of others."""

from base64 import b64encode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.guarded import Guarded
from trimtab.federation.processes import standing as asking
from trimtab.federation.storage import keys
from trimtab.federation.storage.roster import Roster
from trimtab.federation.transport.flower import notices
from trimtab.federation.transport.flower.notices import Notices, ask_standing

ROME, OSLO, GONE = (keys.make_site_key() for _ in range(3))
ROSTER = Roster(
    {"rome": ROME[1], "oslo": OSLO[1]}, (), {keys.fingerprint(GONE[1]): "lima was let go"}
)


def headers(key, copy, signed_by=None):
    return {
        "flwr-public-key": b64encode(key[1].encode()).decode(),
        "trimtab-copy": copy,
        "trimtab-signature": keys.sign((signed_by or key)[0], notices._said(copy)),
    }


def test_who_is_in_is_told_nothing_and_who_is_not_is_told_why():
    told = Notices(lambda: ROSTER)
    assert told._notice(headers(ROME, "a"), "1.2.3.4") == ""
    assert told._notice(headers(GONE, "a"), "1.2.3.4") == (
        "the server lets this site in no more: lima was let go."
    )
    stranger = keys.make_site_key()
    said = told._notice(headers(stranger, "a"), "1.2.3.4")
    assert keys.fingerprint(stranger[1]) in said
    assert "let the operator register it" in said


def test_two_copies_at_one_time_are_both_told_and_one_after_the_other_is_not():
    told = Notices(lambda: ROSTER)
    assert told._notice(headers(ROME, "first"), "1.2.3.4") == ""
    assert told._notice(headers(ROME, "second"), "5.6.7.8") == ""  # the first may have ended
    assert "another copy of this site is running, at 5.6.7.8" in told._notice(
        headers(ROME, "first"), "1.2.3.4"
    )
    assert "another copy of this site is running, at 1.2.3.4" in told._notice(
        headers(ROME, "second"), "5.6.7.8"
    )
    assert told._notice(headers(OSLO, "third"), "1.2.3.4") == ""


def test_without_the_key_nothing_is_told_and_nobody_is_doubled():
    told = Notices(lambda: ROSTER)
    told._notice(headers(ROME, "first"), "1.2.3.4")
    assert told._notice(headers(ROME, "forged", signed_by=OSLO), "6.6.6.6") == ""
    assert told._notice(headers(GONE, "forged", signed_by=OSLO), "6.6.6.6") == ""
    assert told._notice(headers(ROME, "first"), "1.2.3.4") == ""
    for copy in range(50):
        told._notice(headers(ROME, str(copy)), "1.2.3.4")
    assert len(told._copies["rome"]) <= 8


@settings(max_examples=80, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(("flwr-public-key", "trimtab-copy", "trimtab-signature")),
        st.text(max_size=60),
    )
)
def test_whatever_the_headers_are_there_is_an_answer(strange):
    assert Notices(lambda: ROSTER).answer(strange, "1.2.3.4")


@pytest.fixture
def guarded(tmp_path):
    keys.make_authority(tmp_path)
    keys.make_server_certificate(tmp_path, ["127.0.0.1"])
    made = Guarded(tmp_path, {"rome": ROME[1]})
    made.guard.notices = Notices(lambda: ROSTER)
    made.authority = tmp_path / "ca.crt"
    yield made
    made.close()


def test_a_site_asks_over_tls(guarded, tmp_path):
    server = f"127.0.0.1:{guarded.port}"
    assert ask_standing(server, guarded.authority, ROME[0], "a") == ""
    assert "lima was let go" in ask_standing(server, guarded.authority, GONE[0], "a")
    other = tmp_path / "other"
    other.mkdir()
    keys.make_authority(other)
    assert ask_standing(server, other / "ca.crt", ROME[0], "a") is None  # another's server
    assert ask_standing("127.0.0.1:1", guarded.authority, ROME[0], "a") is None


def test_the_log_of_a_site_says_what_it_is_told_once(tmp_path, monkeypatch, caplog):
    answers = iter(["", None, "told.", "told.", None, "told.", "", ""])

    class Stop:
        left = 7

        def wait(self, seconds):
            self.left -= 1
            return self.left < 0

    (tmp_path / "site.key").write_bytes(ROME[0])
    monkeypatch.setattr(asking, "ask_standing", lambda *_: next(answers))
    caplog.set_level("INFO", logger="trimtab.federation")
    asking.Standing(tmp_path, "server:1", Stop()).run()
    assert caplog.messages == ["told.", "the server has nothing against this site any more."]
