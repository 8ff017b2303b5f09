"""Loading, unloading and retiring of model versions under load: no question is lost or computed twice."""

import asyncio
import itertools
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cloud_hub.core.commands import LoadModel, UnloadModel
from cloud_hub.core.lineup import MODEL_USE_TTL_MS
from cloud_hub.core.queues import ModelState
from cloud_hub.core.web_requests import InferRefusedError
from cloud_hub.database.parts import DatabaseUrls
from cloud_hub.engine.base import EchoEngine, EngineError
from cloud_hub.registry.device_states import DeviceState
from cloud_hub.serving.bundles import BundleFolders
from cloud_hub.serving.versions import ModelInUseError
from cloud_hub.storage.versions import ModelUsageStore
from cloud_hub.system.settings import HubSettings
from models.bundle.manifest import BundleError
from tests.cloud_hub.doubles.bench import Bench
from tests.cloud_hub.doubles.devices import CARD, MANIFEST, NOW_S, SimDevice, registry
from tests.cloud_hub.doubles.site import Ear
from tests.cloud_hub.doubles.swapper import NEWER, SAMPLES, Swapper
from tests.cloud_hub.engine.test_bundle import bundle
from wire.protocol.messages import HelloNote, ModelRef, Refusal, RefusalReason

NOW_MS = int(NOW_S * 1000)
OTHER = msgspec.structs.replace(CARD, ref=ModelRef("other", 1, "echo", CARD.ref.codec))


@pytest.fixture
def device() -> SimDevice:
    return SimDevice()


# -- the core


def known(bench: Bench, *cards: Any) -> None:
    for card in cards:
        bench.core.lineup.add_version(card)


def test_a_version_that_is_known_but_not_loaded_is_loaded_by_the_first_question_for_it(device):
    bench = Bench(device)
    known(bench, NEWER)
    bench.ask(device, 1, model=NEWER.ref)
    bench.settle()
    assert bench.turns == [LoadModel(NEWER.name)], "asked for once"
    assert bench.core.counts["verdicts"] == 0
    bench._obey(bench.core.lineup.on_loaded(NEWER.name, "", NEWER, bench.now))
    bench.settle()
    assert bench.core.counts["verdicts"] == 1
    assert bench.core.lineup.ready == (CARD, NEWER)


def test_what_cannot_be_loaded_is_tried_again_ever_more_seldom_and_its_questions_wait(device):
    bench = Bench(device)
    known(bench, NEWER)
    bench.ask(device, 1, model=NEWER.ref)
    tries = []
    for second in range(120):
        bench.wait(1.0)
        bench.settle()
        if bench.turns:
            bench.turns.clear()
            tries.append(second)
            bench._obey(bench.core.lineup.on_loaded(NEWER.name, "the weights are damaged", None, bench.now))
    gaps = [late - early for early, late in itertools.pairwise(tries)]
    assert gaps == sorted(gaps)
    assert gaps[-1] >= 30
    assert bench.core.lineup.model_states()[NEWER.name] == (ModelState.COLD, "the weights are damaged")
    assert len(bench.store.read_unanswered()) == 1
    assert bench.core.counts["load_failures"] == len(tries)


def test_a_version_that_goes_finishes_what_it_has_and_comes_back_when_a_device_asks(device):
    bench = Bench(device, max_batch=1)
    for seq in (1, 2, 3):
        bench.ask(device, seq)
    bench.commit()
    bench.flush()
    assert bench.core.lineup.unload(CARD.name, bench.now) == []
    assert bench.core.lineup.ready == ()
    bench.settle()
    assert bench.turns == [UnloadModel(CARD.name)]
    assert bench.core.counts["verdicts"] == 3
    bench.ask(device, 4)
    bench.settle()
    assert bench.turns == [UnloadModel(CARD.name), LoadModel(CARD.name)]


def test_a_load_that_comes_while_a_version_goes_keeps_it(device):
    bench = Bench(device)
    bench.ask(device, 1)
    bench.commit()
    bench.flush()
    bench.core.lineup.unload(CARD.name, bench.now)
    assert bench.core.lineup.load(CARD.name, bench.now) == []
    assert bench.core.lineup.ready == (CARD,)
    bench.settle()
    assert bench.core.counts["verdicts"] == 1


def test_only_so_many_stay_loaded_and_the_one_asked_for_least_lately_makes_room(device):
    bench = Bench(device, max_loaded=2)
    known(bench, NEWER, OTHER)
    for card in (NEWER,):
        bench.core.lineup.load(card.name, bench.now)
        bench.core.lineup.on_loaded(card.name, "", card, bench.now)
    for seq, ref in enumerate((NEWER.ref, CARD.ref), 1):
        bench.ask(device, seq, model=ref)
        bench.settle()
        bench.now += 1.0
    found = bench.core.lineup.load(OTHER.name, bench.now)
    assert found == [LoadModel(OTHER.name), UnloadModel(NEWER.name)]


def test_case_retired_a_version_is_gone_for_good_and_what_waited_for_it_is_told_so(device):
    bench = Bench(device, max_batch=1)
    for seq in (1, 2, 3):
        bench.ask(device, seq)
    bench.commit()
    bench.commit()
    bench.flush()  # one is being computed, the next is queued at the engine
    bench._obey(bench.core.lineup.retire(CARD.name, bench.now))
    bench.settle()
    assert bench.turns == [UnloadModel(CARD.name)]
    assert bench.core.counts["verdicts"] == 2, "both were at the engine's door"
    assert [note.reason for _, note in bench.notes if isinstance(note, Refusal)] == [RefusalReason.MODEL_GONE]
    bench.ask(device, 4)
    bench.settle()
    last = [note for _, note in bench.notes if isinstance(note, Refusal)][-1]
    assert (last.seq, last.reason, last.final) == (4, RefusalReason.MODEL_GONE, True)


def test_who_speaks_a_version_is_known_for_thirty_days_unless_it_is_gone(device):
    revoked = SimDevice("demo--gone")
    bench = Bench(device, revoked)
    for each in (device, revoked):
        bench.say(each.ask_topic, each.hello())
    heard = bench.core.take_model_uses(bench.now)
    assert set(heard) == {device.id, revoked.id}
    assert not bench.core.take_model_uses(bench.now), "said once"
    bench.registry.put(revoked.enrolled(DeviceState.REVOKED))
    now_ms = int(bench.now * 1000)
    assert bench.core.lineup.devices_using(CARD.name, now_ms) == {device.id: now_ms}
    assert bench.core.lineup.devices_using(CARD.name, now_ms + MODEL_USE_TTL_MS + 1) == {}
    assert bench.core.lineup.devices_using(NEWER.name, now_ms) == {}


# -- on disk


def test_what_devices_spoke_and_what_was_retired_outlives_the_process(urls: DatabaseUrls):
    for restart in range(2):
        spoken = ModelUsageStore.open(urls.versions)
        if not restart:
            hello = HelloNote(1, "b", "a", (MANIFEST.ref, NEWER.ref))
            bench = Bench(SimDevice())
            spoken.put_uses(bench.core.lineup.record_hellos({"demo--d1": hello}, 5))
            spoken.put_uses(
                bench.core.lineup.record_hellos({"demo--d1": msgspec.structs.replace(hello, models=(NEWER.ref,))}, 9)
            )
            spoken.retire("digits@1", 9)
        assert spoken.read_uses()["demo--d1"].models == (NEWER.ref,)
        assert spoken.read_uses()["demo--d1"].at_ms == 9
        assert spoken.retired_models() == {"digits@1"}
        assert spoken.devices_using(NEWER.name, 10, registry(SimDevice())) == {"demo--d1": 9}
        spoken.close()


def test_bundles_name_what_is_damaged_at_start_and_leave_it_out_later(tmp_path: Path):
    settings = HubSettings(max_batch=4)
    (tmp_path / "folder" / "broken").mkdir(parents=True)
    (tmp_path / "folder" / "broken" / "manifest.json").write_text("{}")
    made: list[Path] = []

    def make(path: Path) -> EchoEngine:
        made.append(path)
        return EchoEngine(CARD)

    stock = BundleFolders([], tmp_path / "folder", settings, make)
    assert stock.cards() == []
    assert stock.initial_bundles() == []
    with pytest.raises(EngineError, match="no sound bundle of digits@7"):
        stock.open("digits@7")
    with pytest.raises(BundleError):
        BundleFolders([tmp_path / "folder" / "broken"], None, settings, make).initial_bundles(frozenset({"other@1"}))
    assert not made


@pytest.mark.further
async def test_a_version_swap_under_load_loses_nothing_and_callers_by_name_move_to_the_newer(tmp_path: Path):
    async with Swapper(tmp_path) as hub:
        answers: list[str] = []

        async def caller() -> None:
            answers.extend([(await hub.inference.infer("echo", SAMPLES))[0].model for _ in range(60)])

        callers = [asyncio.create_task(caller()) for _ in range(8)]
        await asyncio.sleep(0.05)
        await hub.versions.load(NEWER.name)
        await hub.versions.unload(CARD.name)
        await asyncio.gather(*callers)
        assert len(answers) == 8 * 60
        assert set(answers) == {CARD.name, NEWER.name}
        assert answers.count(NEWER.name) > 8
        assert [(kept.version, kept.state) for kept in hub.versions.list_models()] == [
            ("1", "UNAVAILABLE"),
            ("2", "READY"),
        ]
        with pytest.raises(InferRefusedError) as gone:
            await hub.inference.infer(CARD.name, SAMPLES)
        assert gone.value.reason is RefusalReason.MODEL_GONE


async def test_a_device_that_still_speaks_an_unloaded_version_is_answered_by_it(tmp_path: Path):
    device = SimDevice()
    swapper = Swapper(tmp_path, device)
    async with swapper as hub:
        await hub.versions.load(NEWER.name)
        await hub.versions.unload(CARD.name)
        ear = await Ear.listen(device, swapper.broker)
        ear.ask(1, 2)
        found = await ear.verdicts(2)
        assert {verdict.prediction.model for verdict in found.values()} == {CARD.name}
        assert swapper.made == 2


async def test_a_version_that_does_not_load_is_one_line_and_the_others_serve_on(tmp_path: Path):
    swapper = Swapper(tmp_path)

    def broken() -> EchoEngine:
        raise EngineError("the weights are not there")

    swapper.stock.add_engine(NEWER, broken)
    async with swapper as hub:
        with pytest.raises(InferRefusedError) as refused:
            await hub.versions.load(NEWER.name)
        assert refused.value.reason is RefusalReason.ENGINE
        assert (await hub.inference.infer("echo", SAMPLES))[0].model == CARD.name
        assert [kept.reason for kept in hub.versions.list_models()] == ["", "the weights are not there"], (
            swapper.log.getvalue()
        )
        with pytest.raises(InferRefusedError):
            await hub.versions.load("nobody@1")
        assert hub.counters()["load_failed"] == 1
    assert '"load_failed","model":"echo@2"' in swapper.log.getvalue()


async def test_retiring_names_who_still_speaks_and_is_forced_or_refused(tmp_path: Path):
    device = SimDevice()
    swapper = Swapper(tmp_path, device)
    async with swapper as hub:
        ear = await Ear.listen(device, swapper.broker)
        ear.note(device.hello())
        await ear.heard()
        hub._core.take_model_uses(NOW_S)
        with pytest.raises(ModelInUseError) as spoken:
            await hub.versions.retire(CARD.name, NOW_MS)
        assert list(spoken.value.devices) == [device.id]
        assert list(await hub.versions.retire(CARD.name, NOW_MS, force=True)) == [device.id]
        await hub.versions.refresh_known()
        assert [kept.version for kept in hub.versions.list_models()] == ["2"], (
            "a retired one does not come back by being found"
        )


async def test_a_version_that_made_room_is_loaded_again_by_a_web_request_and_nothing_is_lost(tmp_path: Path):
    swapper = Swapper(tmp_path, max_loaded=1)
    async with swapper as hub:
        await hub.versions.load(NEWER.name)
        states = {kept.version: kept.state for kept in hub.versions.list_models()}
        assert states["2"] == "READY"
        assert states["1"] in ("UNLOADING", "UNAVAILABLE")
        for model in (CARD.name, NEWER.name, CARD.name):
            assert (await hub.inference.infer(model, SAMPLES))[0].model == model
        assert swapper.made == 4


async def test_a_version_without_room_at_the_start_is_loaded_by_a_web_request(tmp_path: Path):
    swapper = Swapper(tmp_path, max_loaded=1)
    async with swapper as hub:
        assert [card.name for card in hub.inference.cards] == [CARD.name]
        assert (await hub.inference.infer(CARD.ref.name, SAMPLES))[0].model == CARD.name, "by name: what is loaded"
        assert (await hub.inference.infer(NEWER.name, SAMPLES))[0].model == NEWER.name
        assert swapper.made == 1


async def test_a_version_that_room_would_not_keep_out_is_no_business_of_the_web(tmp_path: Path):
    async with Swapper(tmp_path) as hub:
        with pytest.raises(InferRefusedError) as refused:
            await hub.inference.infer(NEWER.name, SAMPLES)
    assert refused.value.reason is RefusalReason.MODEL_GONE


def test_at_the_start_as_many_versions_are_loaded_as_memory_allows_the_newest_of_each_model_first(tmp_path: Path):
    paths = [bundle(tmp_path / str(version), version=version).path for version in (1, 2, 3)]
    size = BundleFolders(paths[:1], None, HubSettings(), EchoEngine).cards()[0].weight_bytes  # type: ignore[arg-type]
    assert size > 0
    for room, chosen in ((0, paths), (3 * size, [paths[2], paths[1], paths[0]]), (2 * size + 1, [paths[2], paths[1]])):
        stock = BundleFolders(paths, None, HubSettings(max_loaded_bytes=room), EchoEngine)  # type: ignore[arg-type]
        assert stock.initial_bundles() == chosen
