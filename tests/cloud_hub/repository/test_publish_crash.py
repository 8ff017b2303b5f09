"""Power loss and a full disk while publishing: devices accept what is there, and the operation can be repeated."""

import itertools
import resource
import shutil

import pytest

from cloud_hub.repository.files import RepositoryFiles
from cloud_hub.repository.publish import publish_policy
from cloud_hub.repository.repository import Repository
from tests.cloud_hub.doubles.fleet import NOW, Device, Holder, Hub, carried, days, policy
from wire.process.exit_codes import ExitCode, ExitError

DEMO = "policy/demo.toml"


@pytest.fixture
def hub(tmp_path):
    return Hub(tmp_path / "hub")


@pytest.fixture
def holder(tmp_path, hub):
    hub.install(Holder.begin(tmp_path / "ring", hub.export(hold=("policy",))))
    return Holder(tmp_path / "ring")


@pytest.fixture
def device(tmp_path, hub, holder):
    return Device(tmp_path / "device", hub)


class CrashError(Exception):
    pass


class DyingShelf(RepositoryFiles):
    """A store that loses power after so many steps: a file written, the link renamed."""

    steps = 10**9

    def write_metadata(self, files):
        for name, data in files.items():
            self._step()
            super().write_metadata({name: data})
        self._step()

    def switch_metadata(self, files, generation):
        fresh = self.folder / f"metadata-{generation}"
        self._copy_to(fresh)
        for name, data in files.items():
            self._step()
            (fresh / name).unlink(missing_ok=True)
            (fresh / name).write_bytes(data)
        self._step()
        self._point_to(fresh)
        self._step()

    def _step(self):
        self.steps -= 1
        if self.steps < 0:
            raise CrashError


def dying(hub, steps):
    repository = Repository(hub.folder / "repository", hub.repository.online)
    repository.shelf = DyingShelf(hub.folder / "repository")
    repository.shelf.steps = steps
    return repository


@pytest.mark.parametrize("act", ["publish", "tend", "rotate"])
def test_a_crash_at_any_step_leaves_a_repository_that_devices_accept(tmp_path, hub, holder, device, act):
    """For a device that knows the old state and for a new one; then it is done again."""
    hub.publish(1)
    device.poll()
    request = holder.rotate(hub.export(new=("snapshot", "timestamp")), "targets", "snapshot", "timestamp", "root")
    acts = {
        "publish": lambda repository: publish_policy(repository, policy(2), NOW),
        "tend": lambda repository: repository.renew_expiring(days(29)),
        "rotate": lambda repository: repository.install_request(carried(request), NOW),
    }
    for steps in itertools.count():
        copy = hub.copy(tmp_path / f"{act}-{steps}")
        try:
            acts[act](dying(copy, steps))
        except CrashError:
            assert_accepted(tmp_path / f"{act}-{steps}-crashed", copy, device)
            acts[act](copy.repository)
            assert_accepted(tmp_path / f"{act}-{steps}-again", copy, device)
        else:
            break
    assert steps >= 2


def assert_accepted(folder, hub, known):
    folder.mkdir()
    new = Device(folder / "new", hub)
    new.root = known.root
    shutil.copytree(known.folder, folder / "known")
    old = Device(folder / "known", hub)
    old.root = known.root
    assert new.sees(DEMO) == old.sees(DEMO) >= 1


def test_a_full_disk_leaves_what_was_there(hub, holder, device):
    """No file may grow any more."""
    hub.publish(1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(ExitError) as stop:
            hub.publish(2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert stop.value.code is ExitCode.DISK
    assert device.sees(DEMO) == 1
    hub.publish(2)
    assert device.sees(DEMO) == 2
