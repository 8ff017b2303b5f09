"""Tests of wrong clocks: what the client of the update repository makes of them."""

import pytest

from models.update.trust import SIGNED_MS_FIELD
from tests.models.doubles.repository import NOW, days
from tests.models.doubles.road import DAY_S, UpdateClientHarness, open_update_client
from wire.protocol.rollout import InstallFailure


@pytest.fixture
def road(tmp_path):
    with open_update_client(tmp_path / "trust") as road:
        yield road


def hub_time(road: UpdateClientHarness, at_s: float) -> None:
    road.repo.say_hour(int(at_s * 1000))
    road.repo.publish("timestamp")


def test_a_clock_at_1970_is_lifted_and_a_frozen_repository_is_seen(road):
    hub_time(road, NOW.timestamp() + 6 * DAY_S)
    road.refresh()
    road.at_s = 0.0
    road.refresh()  # the repository is fresh: a broken clock does not stop us
    road.repo.timestamp.expires = days(3)
    road.repo.publish("timestamp")
    road.refused(InstallFailure.FREEZE)  # 1970 is before day 3, but we know that day 6 has come


def test_a_clock_at_1970_is_lifted_at_the_first_refresh_to_the_hour_of_the_build(road):
    road.at_s = 0.0
    road.least_ms = int((NOW.timestamp() + 8 * DAY_S) * 1000)
    road.refused(InstallFailure.FREEZE)


@pytest.mark.parametrize("jump_s", [3650 * DAY_S, 30000 * DAY_S, 4e11])
def test_a_clock_ten_years_ahead_refuses_keeps_nothing_and_is_well_again_with_the_clock(road, jump_s):
    road.refresh()
    road.at_s += jump_s
    road.refused(InstallFailure.FREEZE)
    road.at_s -= jump_s
    road.repo.publish_all()
    road.refresh()


@pytest.mark.parametrize("jump_s", [3600.0, -DAY_S])
def test_a_clock_off_by_an_hour_or_a_day_stops_nothing(road, jump_s):
    hub_time(road, NOW.timestamp())
    road.refresh()
    road.at_s += jump_s
    road.repo.publish_all()
    road.refresh()


def test_an_hour_said_by_stolen_keys_is_void_with_them(road):
    hub_time(road, NOW.timestamp() + 170 * DAY_S)  # below the expiry of targets, so we have to believe it
    road.repo.timestamp.expires = days(175)
    road.repo.snapshot.expires = days(175)
    road.repo.publish("snapshot", "timestamp")
    road.refresh()
    road.repo.rotate("timestamp")
    road.repo.rotate("snapshot")
    road.repo.publish("root")
    del road.repo.timestamp.unrecognized_fields[SIGNED_MS_FIELD]
    road.repo.timestamp.expires, road.repo.snapshot.expires = days(7), days(30)
    road.repo.publish("snapshot", "timestamp")
    road.refresh()
