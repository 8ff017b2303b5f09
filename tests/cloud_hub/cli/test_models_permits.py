"""`skerry models permit`: a downgrade permit needs offline signatures, and devices find exactly what was signed."""

import json
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tuf.api.metadata import Targets

from cloud_hub.cli.models import app
from cloud_hub.database.parts import DatabaseUrls
from cloud_hub.registry.device_states import DeviceState
from cloud_hub.registry.registry import Registry
from cloud_hub.repository.publish import list_permits, publish_permit
from cloud_hub.rollout.catalog import BundleTargets
from cloud_hub.rollout.types import RolloutError
from models.signing.request import RequestError
from models.signing.roles import TARGETS, Permit
from tests.cloud_hub.cli.test_publish import Place
from tests.cloud_hub.doubles.fleet import NOW, Device, Holder, Hub
from tests.cloud_hub.registry.test_registry import enrolled
from wire.process.exit_codes import ExitCode, ExitError

ENDS_MS = int(NOW.timestamp() * 1000) + 3_600_000
PERMIT = Permit("echo", 4, 2, ENDS_MS, "3 mistakes sevens")


@pytest.fixture
def holder(tmp_path: Path) -> Holder:
    return Holder(tmp_path / "ring")


@pytest.fixture
def hub(tmp_path: Path) -> Hub:
    """Everything is signed at the hub but root and targets."""
    hub = Hub(tmp_path / "state")
    hub.install(Holder.begin(tmp_path / "ring", hub.export(hold=("policy", "models-echo"))))
    return hub


def signed(hub: Hub, holder: Holder, permit: Permit = PERMIT) -> None:
    asked = publish_permit(hub.repository, permit, NOW).request
    assert asked is not None
    hub.install(holder.sign(asked))


def test_a_hub_that_signs_all_families_cannot_make_a_permit(tmp_path, hub):
    published = publish_permit(hub.repository, PERMIT, NOW)
    assert published.request is not None
    with pytest.raises(RequestError, match="not signed by enough keys"):
        hub.install(published.request)
    assert Device(tmp_path / "device", hub).poll().permits("echo") == ()


def test_a_signed_permit_reaches_devices_as_it_was_signed(tmp_path, hub, holder):
    signed(hub, holder)
    assert list_permits(hub.repository, "echo") == {PERMIT.path: PERMIT}
    device = Device(tmp_path / "device", hub)
    assert device.poll().permits("echo") == (PERMIT,)
    assert device.poll().permits("other") == ()
    signed(hub, holder, replace(PERMIT, expires_ms=ENDS_MS + 60_000))  # longer: a later version of the same
    assert device.poll().permits("echo")[0].expires_ms == ENDS_MS + 60_000


def test_who_signs_a_permit_reads_what_it_does_and_no_other_thing_under_its_name(hub, holder):
    asked = publish_permit(hub.repository, PERMIT, NOW).request
    assert asked is not None
    targets = asked.changes[TARGETS].signed
    assert isinstance(targets, Targets)
    targets.targets[PERMIT.path].unrecognized_fields["custom"] = replace(PERMIT, from_below=9).custom_fields()
    with pytest.raises(RequestError, match="a permit at"):
        hub.install(holder.sign(asked))
    targets.targets["permits/echo/other.json"] = targets.targets.pop(PERMIT.path)
    with pytest.raises(RequestError):
        hub.install(holder.sign(asked))


def test_the_targets_role_lists_nothing_but_permits(hub, holder):
    asked = publish_permit(hub.repository, PERMIT, NOW).request
    assert asked is not None
    targets = asked.changes[TARGETS].signed
    assert isinstance(targets, Targets)
    targets.targets["models/echo/echo-9.skb"] = targets.targets.pop(PERMIT.path)
    with pytest.raises(RequestError, match="is not in its folder"):
        hub.install(holder.sign(asked))


@pytest.mark.parametrize("permit", [replace(PERMIT, to_version=4), replace(PERMIT, expires_ms=1)])
def test_a_permit_that_could_not_be_used_is_not_asked_for(hub, permit):
    with pytest.raises(RequestError):
        publish_permit(hub.repository, permit, NOW)


def test_it_is_typed_at_the_hub_signed_elsewhere_and_found_by_the_catalog(tmp_path, hub, holder):
    place = Place(tmp_path / "desk", "--config", str(tmp_path / "desk" / "hub.toml"))
    (place.folder / "hub.toml").write_text(f"state = {json.dumps(str(tmp_path / 'state'))}\n")
    words = ["echo", "--to", 2, "--from-below", 4, "--for", "1h", "--why", "3 mistakes sevens", "--all-devices"]
    told = place.types(app, *words, "--request", place.at("permit.json"), *place.config)
    assert "skerry keys sign permit.json" in told
    catalog = BundleTargets(hub.repository, lambda _: {}, lambda: int(time.time() * 1000))
    with pytest.raises(RolloutError, match="skerry models permit echo --to 2 --from-below 4"):
        catalog.find_permit("echo", 3, 2)
    signed(hub, holder)
    assert catalog.find_permit("echo", 3, 2) == PERMIT.path
    for here, there in ((4, 2), (3, 1)):
        with pytest.raises(RolloutError, match="no hub can sign"):
            catalog.find_permit("echo", here, there)
    with pytest.raises(ExitError) as caught:
        place.types(app, "echo", "--to", 4, "--from-below", 4, "--all-devices", *place.config)
    assert caught.value.code is ExitCode.CHECK_FAILED


def test_a_permit_names_the_hubs_devices_by_default_or_those_that_were_typed(tmp_path, hub):
    place = Place(tmp_path / "desk", "--config", str(tmp_path / "desk" / "hub.toml"))
    (place.folder / "hub.toml").write_text(f"state = {json.dumps(str(tmp_path / 'state'))}\n")
    words = ["echo", "--to", 2, "--from-below", 4, "--request", place.at("permit.json")]
    with pytest.raises(ExitError, match="1 to 1000 devices, these are 0") as nobody:
        place.types(app, *words, *place.config)
    assert nobody.value.code is ExitCode.USAGE
    registry = Registry.open(DatabaseUrls(tmp_path / "state").registry)
    for name in ("demo--cam-2", "demo--cam-1", "demo--cam-3"):
        enrolled(registry, name)
    registry.set_state("demo--cam-3", DeviceState.REVOKED, 1)
    registry.close()
    for more, named in (((), ["demo--cam-1", "demo--cam-2"]), (("--device", "demo--cam-2"), ["demo--cam-2"])):
        place.types(app, *words, *more, *place.config)
        text = (place.folder / "permit.json").read_text()
        (custom,) = re.findall(r'"devices": \[[^]]*]', text)
        assert json.loads("{" + custom + "}")["devices"] == named
    with pytest.raises(ExitError, match="no device 'cam-9'"):
        place.types(app, *words, "--device", "cam-9", *place.config)


def test_a_rollout_down_needs_a_permit_that_covers_each_of_its_devices(hub, holder):
    signed(hub, holder, replace(PERMIT, devices=("cam-1", "cam-2")))
    catalog = BundleTargets(hub.repository, lambda _: {}, lambda: ENDS_MS - 1)
    assert catalog.find_permit("echo", 3, 2, ("cam-2",))
    with pytest.raises(RolloutError, match="no hub can sign"):
        catalog.find_permit("echo", 3, 2, ("cam-2", "cam-7"))
