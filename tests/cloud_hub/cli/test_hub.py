"""`skerry hub ...` on a state folder without a hub and beside a running API."""

import asyncio
import base64
import contextlib
import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

import skerry
from cloud_hub.core.lineup import ModelUse
from cloud_hub.database.parts import DatabaseUrls
from cloud_hub.enrollment.enrollment import EnrollmentService, EnrolRequest
from cloud_hub.enrollment.replies import BrokerAddress, EnrollmentReply, HubAddress
from cloud_hub.registry.registry import InviteFault, Registry
from cloud_hub.runtime.config import load_hub_config
from cloud_hub.security.authority import Authority, utc_now
from cloud_hub.security.hub_keys import HubCard
from cloud_hub.storage.versions import ModelUsageStore
from cloud_hub.system.client import ApiAddress
from cloud_hub.system.state_folder import StateDir
from tests.cloud_hub.doubles.api_site import Site
from tests.cloud_hub.doubles.joiner import Joiner
from wire.process.daemon import FolderLock
from wire.process.exit_codes import ExitCode, ExitError
from wire.protocol.messages import ModelRef


class Person:
    """Runs `skerry hub WORDS --config FILE`, or `skerry devices ...` where the first word says so."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "hub.toml"
        self.state = StateDir(folder / "state")

    def types(self, *words: str) -> str:
        """Return what is printed. ExitError as the process would end with it."""
        command = words if words[0] == "devices" else ("hub", *words)
        result = CliRunner().invoke(skerry.app, [*command, "--config", str(self.file)])
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.stdout

    def json(self, *words: str) -> Any:
        return json.loads(self.types(*words, "--json"))

    def refused(self, *words: str) -> ExitCode:
        with pytest.raises(ExitError) as stop:
            self.types(*words)
        assert "\n" not in str(stop.value)
        return stop.value.code


@pytest.fixture
def person(tmp_path: Path) -> Person:
    found = Person(tmp_path)
    found.types("init", "--state", str(tmp_path / "state"))
    return found


def enrol(state: StateDir, invite: str) -> None:
    registry = Registry.open(DatabaseUrls(state.root).registry)
    authority = Authority.open(state.certificates, utc_now())
    place = HubAddress(BrokerAddress("h", 1), (HubCard("h", "r", bytes(32), bytes(32)),))
    issuer = EnrollmentService(registry, authority, place)
    request = msgspec.convert(Joiner().request(unpacked(invite)["token"]), EnrolRequest)
    assert isinstance(issuer.enrol_device(request, int(time.time() * 1000)), EnrollmentReply)
    registry.close()


def unpacked(invite: str) -> dict[str, Any]:
    packed = invite.strip().removeprefix("skerry1:")
    found = msgspec.msgpack.decode(base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4)))
    assert isinstance(found, dict)
    return found


def test_first_start_makes_a_private_folder(person):
    assert person.state.root.stat().st_mode & 0o777 == 0o700
    files = [path for path in person.state.root.rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"ca.key", "ca.pem", "server.key", "hub.key", "admin.token", "reply.key"}
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in files)


def test_second_init_changes_no_key_and_no_configuration(person):
    before = {path: path.read_bytes() for path in person.state.root.rglob("*.key")}
    person.file.write_text(person.file.read_text() + "# mine\n")
    person.types("init")
    assert {path: path.read_bytes() for path in person.state.root.rglob("*.key")} == before
    assert "# mine" in person.file.read_text()


def test_init_explains_every_key_and_says_that_keys_come_before_devices(tmp_path):
    person = Person(tmp_path)
    said = person.types("init", "--state", str(tmp_path / "state"), "--model", str(tmp_path / "digits"))
    assert "keys           none yet: make them before the first device enrols" in said
    written = person.file.read_text()
    assert "# max_queued = 4096        # questions in memory" in written
    config = load_hub_config(person.file)
    assert (config.models, config.state) == ((tmp_path / "digits",), tmp_path / "state")
    person.file.write_text(written.replace("# port = 8080", "port = 8081"))
    person.types("init")
    assert load_hub_config(person.file).api.port == 8081  # what is there is read, not written


def test_an_invite_before_the_first_keys_says_what_its_device_will_lack(person):
    result = CliRunner().invoke(skerry.app, ["hub", "invite", "cam-7", "--config", str(person.file)])
    assert result.stdout.startswith("skerry1:")
    assert "demo--cam-7 gets no updates (docs/trust.md, the first keys)" in result.stderr
    assert person.json("invite", "cam-8")["updates"] is False


def test_invite_without_a_running_hub_goes_into_its_folder(person):
    invited = person.json("invite", "cam-7", "--tenant", "acme", "--expires", "90s")
    assert invited["device"] == "acme--cam-7"
    assert abs(invited["expires_ms"] / 1000 - time.time() - 90) < 20
    inside = unpacked(invited["invite"])
    assert inside["url"] == "http://127.0.0.1:8080"
    assert inside["ca_sha256"] == Authority.open(person.state.certificates, utc_now()).sha256
    enrol(person.state, invited["invite"])
    assert person.types("invite", "cam-8").startswith("skerry1:")


def test_device_is_shown_suspended_resumed_and_revoked_for_good(person):
    enrol(person.state, person.types("invite", "cam-7"))
    assert "demo--cam-7" in person.types("devices", "list")
    assert person.json("devices", "suspend", "demo--cam-7")["state"] == "suspended"
    assert person.json("devices", "resume", "demo--cam-7")["state"] == "active"
    assert person.json("devices", "revoke", "demo--cam-7")["state"] == "revoked"
    assert "revoked" in person.types("devices", "show", "demo--cam-7")
    assert person.refused("devices", "resume", "demo--cam-7") == ExitCode.CHECK_FAILED


def test_a_device_retires_in_its_time_or_at_once(person):
    for name, drain, state in (("cam-7", "1d", "retiring"), ("cam-8", "0s", "retired")):
        enrol(person.state, person.types("invite", name))
        assert person.json("devices", "retire", f"demo--{name}", "--drain", drain)["state"] == state
    assert person.json("devices", "resume", "demo--cam-7")["state"] == "active"
    assert person.refused("devices", "resume", "demo--cam-8") == ExitCode.CHECK_FAILED
    assert person.types("invite", "cam-8").startswith("skerry1:")  # the name is free again


@pytest.mark.further
def test_the_ca_is_replaced_by_hand_while_no_hub_runs(person):
    enrol(person.state, person.types("invite", "cam-7"))
    old = person.json("ca", "show")["ca"]
    assert person.refused("ca", "finish") == ExitCode.CHECK_FAILED
    coming = person.json("ca", "rotate")["coming"]
    assert person.refused("ca", "rotate") == ExitCode.CHECK_FAILED
    assert "demo--cam-7" in person.types("ca", "show")
    assert person.refused("ca", "finish") == ExitCode.CHECK_FAILED
    assert unpacked(person.types("invite", "cam-8"))["ca_sha256"] == old
    done = person.json("ca", "finish", "--force")
    assert (done["ca"], done["cut_off"]) == (coming, ["demo--cam-7"])
    assert unpacked(person.types("invite", "cam-8"))["ca_sha256"] == coming


def test_an_invite_is_drawn_for_a_camera_and_written_below(person):
    lines = person.types("invite", "cam-7", "--qr").splitlines()
    assert lines[-1].startswith("skerry1:")
    assert len(lines) > 20
    assert set("".join(lines[:-1])) <= set(" █▀▄\x1b[0123456789;m")


def test_an_invite_for_one_machine_says_so_at_the_hub(person):
    token = unpacked(person.types("invite", "cam-7", "--serial", "SN-1", "--serial", "SN-2"))["token"]
    registry = Registry.open(DatabaseUrls(person.state.root).registry)
    now_ms = int(time.time() * 1000)
    assert registry.open_invite(token, now_ms) is InviteFault.HARDWARE
    assert registry.open_invite(token, now_ms, "SN-2") == "demo--cam-7"
    registry.close()
    assert person.refused("invite", "cam-8", "--serial", "") == ExitCode.USAGE


def test_a_device_is_found_by_its_name_alone_if_only_one_has_it(person):
    enrol(person.state, person.types("invite", "cam-7", "--class", "camera", "--region", "eu-de"))
    assert person.json("devices", "show", "cam-7")["device"] == "demo--cam-7"
    assert person.json("devices", "suspend", "cam-7")["state"] == "suspended"
    enrol(person.state, person.types("invite", "cam-7", "--tenant", "acme"))
    assert person.refused("devices", "revoke", "cam-7") == ExitCode.USAGE
    assert person.json("devices", "show", "acme--cam-7")["state"] == "active"
    assert person.refused("devices", "show", "cam") == ExitCode.NOT_FOUND  # the start of a name is none


def test_a_list_of_devices_says_who_is_there_with_which_model_and_class(person):
    enrol(person.state, person.types("invite", "cam-7", "--class", "camera", "--region", "eu-de"))
    with contextlib.closing(ModelUsageStore.open(DatabaseUrls(person.state.root).versions)) as uses:
        uses.put_uses({"demo--cam-7": ModelUse((ModelRef("digits", 3, "c", "pack4"),), 1_700_000_000_000)})
    head, row = person.types("devices", "list").splitlines()
    assert head.split("  ")[0].strip() == "device"
    for said in ("demo--cam-7", "active", "no", "2023-11-14 22:13", "digits@3", "camera", "eu-de"):
        assert said in row


def test_a_suspended_device_is_invited_anew_on_purpose_alone(person):
    enrol(person.state, person.types("invite", "cam-7"))
    person.types("devices", "suspend", "demo--cam-7")
    assert person.refused("invite", "cam-7") == ExitCode.USAGE
    enrol(person.state, person.types("invite", "cam-7", "--replace"))
    assert person.json("devices", "show", "demo--cam-7")["state"] == "active"


def test_unknown_device_is_not_found(person):
    assert person.refused("devices", "show", "demo--nobody") == ExitCode.NOT_FOUND
    assert person.refused("devices", "suspend", "demo--nobody") == ExitCode.NOT_FOUND


@pytest.mark.parametrize("attack", ["+", "#", "a/b", "a" * 65, "$SYS", "tür", "Cam", "a--b--c"])
def test_a_bad_name_is_refused(person, attack):
    assert person.refused("invite", attack) == ExitCode.USAGE


@pytest.mark.parametrize("span", ["", "1", "h", "1w", "-1h", "1.5h", "9999999999d"])
def test_a_span_that_is_none_is_refused(person, span):
    assert person.refused("invite", "cam-7", "--expires", span) == ExitCode.USAGE


def test_without_a_state_folder_the_command_says_what_makes_one(tmp_path):
    person = Person(tmp_path)
    person.file.write_text('state = "nowhere"\n')
    assert person.refused("invite", "cam-7") == ExitCode.MISSING
    assert not (tmp_path / "nowhere").exists()


def test_status_needs_a_running_hub(person):
    assert person.refused("status") == ExitCode.HUB


@pytest.fixture
async def running(person: Person) -> Any:
    """An API on the person's state folder, its lock held, as by a running hub."""
    with FolderLock(person.state.root):
        site = await Site(person.state.certificates).open()
        ApiAddress(site.url, str(site.token_file)).save(person.state.running)
        yield site
        await site.close()


async def test_beside_a_running_hub_its_api_is_asked(person, running):
    made = await asyncio.to_thread(person.json, "invite", "cam-9")
    assert unpacked(made["invite"])["url"] == running.url
    assert running.registry.count_open_invites(0) == 1
    assert (await asyncio.to_thread(person.json, "status"))["hub"] == "hub-1"
    assert await asyncio.to_thread(person.json, "devices", "list") == []
    assert await asyncio.to_thread(person.refused, "invite", "a" * 64) == ExitCode.USAGE


async def test_the_models_of_a_running_hub_are_shown_with_what_they_compute_on_and_why(person, running):
    found = {row["model"]: row for row in await asyncio.to_thread(person.json, "models")}
    assert found["digits@7"]["setup"]["precision"] == "float32"
    assert found["digits@7"]["setup"]["fallback"] == "digits@7: the card is gone"
    shown = " ".join((await asyncio.to_thread(person.types, "models")).split())
    assert "digits@7 ready cpu float32" in shown
    assert "fallback:" in shown


def test_models_are_those_of_a_running_hub(person):
    assert person.refused("models") == ExitCode.HUB


async def test_a_hub_that_was_killed_leaves_no_trap(person):
    ApiAddress("http://127.0.0.1:9", str(person.state.token_file)).save(person.state.running)
    assert person.types("invite", "cam-7").startswith("skerry1:")
