"""Tests of downloads from servers that break off, drip bytes, lie about lengths and ranges, or redirect."""

import os
import ssl
from hashlib import sha256

import pytest
from tuf.api.exceptions import DownloadError, DownloadHTTPError, DownloadLengthMismatchError, SlowRetrievalError

from models.update.client import RefusedError
from models.update.downloader import ResumingFetcher, TransferClock, UnreachableError
from models.update.partial_download import PartialDownload
from tests.models.doubles.mirror import Faults, Mirror
from tests.models.doubles.road import open_update_client
from wire.http.client import SlowTransferError, TransferLimits, TransferPace
from wire.protocol.rollout import InstallFailure

DATA = os.urandom(300_000)
SIZE = len(DATA)
PATH = "models/digits/digits-7.skb"


@pytest.fixture
def mirror():
    with Mirror({"targets/file": DATA, "metadata/timestamp.json": b"x" * 500}) as mirror:
        yield mirror


@pytest.fixture
def part(tmp_path):
    with PartialDownload(tmp_path / "file.part") as part:
        yield part


@pytest.fixture
def naps():
    return []


@pytest.fixture
def fetch(mirror, part, naps):
    """Download `targets/file` into the part, under these limits and faults; pauses are only noted."""
    opened = []

    def go(length=SIZE, limits=None, **faults):
        fetcher = ResumingFetcher(limits, hands=TransferClock(sleep=naps.append))
        opened.append(fetcher)
        mirror.faults = Faults(**faults)
        fetcher.download_part(f"{mirror.url}targets/file", part, length)
        return fetcher

    yield go
    for fetcher in opened:
        fetcher.close()


def content(part):
    part.flush()
    return part.path.read_bytes()


def test_an_uncut_download_is_one_request(mirror, part, fetch):
    assert fetch().requests == 1
    assert content(part) == DATA
    assert mirror.sent_bytes == len(DATA)


@pytest.mark.parametrize("percent", [0, 1, 50, 99])
def test_a_cut_download_goes_on_where_it_stopped(mirror, part, fetch, percent):
    fetcher = fetch(cuts=[len(DATA) * percent // 100])
    assert content(part) == DATA
    assert fetcher.received_bytes == len(DATA)
    assert mirror.sent_bytes <= 1.05 * len(DATA)
    assert [ranges for _, ranges in mirror.requests] == ["", f"bytes={len(DATA) * percent // 100}-" if percent else ""]


def test_cut_again_and_again_it_still_costs_no_byte_twice(mirror, part, fetch):
    fetch(cuts=[40_000] * 7)
    assert content(part) == DATA
    assert mirror.sent_bytes == len(DATA)


def test_a_reset_after_the_last_byte_costs_nothing(mirror, part, fetch):
    assert fetch(cuts=[len(DATA)]).requests == 1
    assert content(part) == DATA


def test_a_restart_of_the_device_goes_on_too(mirror, part, fetch, tmp_path):
    with pytest.raises(UnreachableError):
        fetch(cuts=[150_000, 0, 0, 0, 0, 0, 0])
    part.__exit__(None, None, None)
    with PartialDownload(part.path) as again:
        assert (again.size, again.tag) == (150_000, '"v1"')
        fetcher = ResumingFetcher()
        mirror.faults = Faults()
        fetcher.download_part(f"{mirror.url}targets/file", again, len(DATA))
        assert content(again) == DATA
        assert fetcher.received_bytes == len(DATA) - 150_000


def test_another_file_under_the_same_name_begins_anew(mirror, part, fetch):
    fetch(cuts=[150_000], tags=['"old"', '"new"'])
    assert content(part) == DATA
    assert mirror.sent_bytes == 150_000 + len(DATA)
    assert not part.resumed


def test_a_server_without_ranges_begins_anew(mirror, part, fetch):
    fetch(cuts=[150_000], ranges=False)
    assert content(part) == DATA
    assert mirror.sent_bytes == 150_000 + len(DATA)


@pytest.mark.parametrize("tag", ["", 'W/"weak"'])
def test_without_a_strong_tag_it_goes_on_and_the_hash_decides(mirror, part, fetch, tag):
    fetch(cuts=[150_000], tags=[tag])
    assert content(part) == DATA
    assert part.resumed


def test_a_server_that_answers_from_the_beginning_is_not_believed(part, fetch):
    with pytest.raises(UnreachableError):
        fetch(cuts=[150_000] * 99, ignore_range=True)
    assert part.size in (0, 150_000)


def test_a_part_longer_than_the_file_begins_anew(part, fetch):
    part.append(bytes(len(DATA) + 5))
    fetch()
    assert content(part) == DATA


def test_a_connection_that_brings_nothing_is_tried_with_growing_pauses_and_then_given_up(part, fetch, naps):
    with pytest.raises(UnreachableError):
        fetch(cuts=[0] * 99)
    assert naps == [0.5, 1.0, 2.0, 4.0]


@pytest.mark.parametrize("announce", [True, False])
@pytest.mark.parametrize("length", [len(DATA) - 1, len(DATA) + 1])
def test_a_length_that_is_not_the_promised_one_is_refused_and_nothing_is_kept(part, fetch, length, announce):
    expected = DownloadLengthMismatchError if announce or length < len(DATA) else UnreachableError
    with pytest.raises(expected):
        fetch(length, announce=announce)
    if expected is DownloadLengthMismatchError:
        assert not part.path.exists()


def test_an_announced_wrong_length_costs_no_download(mirror, part, fetch):
    with pytest.raises(DownloadLengthMismatchError):
        fetch(1000)
    assert part.size == 0


def test_an_endless_body_is_cut_one_byte_beyond_the_promise(part, fetch):
    with pytest.raises(DownloadLengthMismatchError):
        fetch(endless=True)
    assert part.size == len(DATA) + 1
    assert not part.path.exists()


@pytest.mark.parametrize("endless", [True, False])
def test_endless_metadata_is_cut_one_byte_beyond_the_limit(mirror, endless):
    mirror.faults = Faults(where="metadata", endless=endless)
    fetcher = ResumingFetcher()
    with pytest.raises(DownloadLengthMismatchError):
        fetcher.download_bytes(f"{mirror.url}metadata/timestamp.json", 400)
    assert fetcher.received_bytes == (401 if endless else 0)
    fetcher.close()


def test_a_drip_is_ended_by_the_deadline_of_the_whole_download(part, fetch):
    with pytest.raises(SlowRetrievalError, match=r"not done after|silent"):
        fetch(limits=TransferLimits(deadline_s=0.3, least_bytes_per_s=0), drip_s=0.02)
    assert 0 < part.size < 100


@pytest.mark.further
def test_a_drip_of_headers_is_ended_too(fetch):
    with pytest.raises(SlowRetrievalError):
        fetch(limits=TransferLimits(deadline_s=0.3), drip_s=0.02, drip_header=True)


@pytest.mark.further
def test_a_drip_is_ended_by_the_least_rate_long_before_the_deadline(part, fetch):
    with pytest.raises(SlowRetrievalError, match="bytes/s, least"):
        fetch(limits=TransferLimits(deadline_s=60, least_bytes_per_s=1024, window_s=0.2), drip_s=0.02)
    assert part.size > 0


def test_silence_is_ended_by_the_gap(fetch):
    with pytest.raises(SlowRetrievalError, match="silent"):
        fetch(limits=TransferLimits(gap_s=0.2), drip_s=5)


def test_one_byte_each_29_seconds_by_the_clock():
    """The real figures on a clock of our own: the rate is judged at 5 minutes, whatever the gap allows."""
    now = [0.0]
    pace = TransferPace(TransferLimits(), clock=lambda: now[0])
    for _ in range(10):
        assert pace.read_timeout_s() == 30.0
        now[0] += 29.0
        pace.count_bytes(1)
    now[0] += 29.0
    with pytest.raises(SlowTransferError):
        pace.count_bytes(1)
    pace = TransferPace(TransferLimits(least_bytes_per_s=0), clock=lambda: now[0])
    now[0] += 24 * 3600
    with pytest.raises(SlowTransferError):
        pace.read_timeout_s()


@pytest.mark.parametrize(
    "elsewhere", ["http://127.0.0.2/", "http://localhost:1/x", "//evil.example/x", "file:///etc/passwd"]
)
def test_a_redirect_to_another_host_is_not_followed(mirror, fetch, elsewhere):
    with pytest.raises(DownloadError, match=r"another host|plain http"):
        fetch(redirect=elsewhere)
    assert len(mirror.requests) == 1


def test_a_redirect_on_the_same_host_is_followed_but_not_for_ever(mirror, part, fetch):
    mirror.files["other/file"] = DATA
    fetch(redirect="/other/file")
    assert content(part) == DATA
    part.restart()
    with pytest.raises(DownloadError, match="too often"):
        fetch(redirect="/targets/file")


@pytest.mark.parametrize("status", [204, 403, 404, 500, 503])
def test_any_other_status_is_an_error_that_says_which(fetch, status):
    with pytest.raises(DownloadHTTPError) as caught:
        fetch(status=status)
    assert caught.value.status_code == status


@pytest.mark.parametrize(
    "url", ["ftp://h/x", "http://", "http://a:b@h/x", "http://h:0/", "http://h:99999999/", "http://h/\n"]
)
def test_an_address_that_is_not_plain_is_refused_unasked(url):
    with pytest.raises(DownloadError, match="not a plain"):
        ResumingFetcher().download_bytes(url, 10)


def test_nobody_there_is_the_network(part):
    fetcher = ResumingFetcher(hands=TransferClock(sleep=lambda _: None))
    with pytest.raises(UnreachableError):
        fetcher.download_part("http://127.0.0.1:1/x", part, 10)
    with pytest.raises(UnreachableError):
        fetcher.download_bytes("http://127.0.0.1:1/x", 10)


def test_a_server_without_tls_is_not_spoken_to_in_clear_when_https_was_asked_for(mirror):
    fetcher = ResumingFetcher(context=ssl.create_default_context())
    with pytest.raises(UnreachableError):
        fetcher.download_bytes(mirror.url.replace("http:", "https:") + "metadata/timestamp.json", 1000)


def test_metadata_cut_once_is_asked_for_again(mirror):
    mirror.faults = Faults(where="metadata", cuts=[100])
    fetcher = ResumingFetcher()
    assert fetcher.download_bytes(f"{mirror.url}metadata/timestamp.json", 1000) == b"x" * 500
    fetcher.close()


def test_a_connection_that_died_while_it_was_kept_is_opened_again(mirror):
    fetcher = ResumingFetcher()
    url = f"{mirror.url}metadata/timestamp.json"
    fetcher.download_bytes(url, 1000)
    mirror.faults = Faults(where="metadata", cuts=[500])
    fetcher.download_bytes(url, 1000)
    assert fetcher.download_bytes(url, 1000) == b"x" * 500
    fetcher.close()


def test_the_seam_of_the_tuf_client_streams(mirror):
    fetcher = ResumingFetcher()
    with fetcher.download_file(f"{mirror.url}targets/file", len(DATA)) as file:
        assert file.read() == DATA
    fetcher.close()


@pytest.fixture
def road(tmp_path):
    with open_update_client(tmp_path / "trust") as road:
        road.repo.add(PATH, DATA, version=7)
        road.repo.publish_all()
        yield road


def take(road, part):
    session = road.refresh()
    session.download(session.approved_target(PATH), part)


def replace(road, data):
    place = next(path for path in road.repo.files if path.startswith("targets/"))
    road.repo.files[place] = data


def test_a_wrong_byte_is_refused_and_the_part_is_gone(road, part):
    replace(road, DATA[:-1] + bytes([DATA[-1] ^ 1]))
    with pytest.raises(RefusedError) as caught:
        take(road, part)
    assert caught.value.refusal.failure is InstallFailure.INTEGRITY
    assert not part.path.exists()


@pytest.mark.parametrize("data", [DATA + b"x", DATA[:-1]])
def test_a_byte_more_or_less_is_refused_and_the_part_is_gone(road, part, data):
    replace(road, data)
    with pytest.raises(RefusedError) as caught:
        take(road, part)
    assert caught.value.refusal.failure is InstallFailure.INTEGRITY
    assert not part.path.exists()


def test_a_slow_server_is_called_slow_and_not_absent(road, part):
    road.limits = TransferLimits(deadline_s=0.2)
    road.mirror.faults = Faults(drip_s=0.05)
    with pytest.raises(RefusedError) as caught:
        take(road, part)
    assert caught.value.refusal.failure is InstallFailure.SLOW_RETRIEVAL


def test_a_torn_beginning_is_found_by_the_hash_and_fetched_whole(road, part):
    """A power cut may leave zeros where unsynced bytes were; the tag and the length look right."""
    part.append(bytes(150_000))
    part.tag = '"v1"'
    take(road, part)
    assert sha256(content(part)).digest() == sha256(DATA).digest()
    assert road.mirror.sent_bytes >= len(DATA) + 150_000
