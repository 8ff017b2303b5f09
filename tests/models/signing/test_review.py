"""Tests of the review of signing requests: attacks by a compromised hub that must not be signed."""

from copy import deepcopy
from datetime import timedelta

import pytest
from tuf.api.metadata import DelegatedRole, Metadata, TargetFile

from models.signing import ceremony, review
from models.signing.keyring import build_public_key
from models.signing.request import RepositoryState, RequestError, SigningRequest
from tests.models.doubles.keys import NOW, MemoryKeyring, begin_repository, installed_state, targets_of


@pytest.fixture
def memory():
    return MemoryKeyring()


def check(request, trusted):
    review.check_request(request, trusted, NOW)


def test_the_first_request_is_whole(memory):
    request = begin_repository(memory)
    check(request, None)
    review.check_signatures(request, frozenset({"keys"}))


def test_an_honest_change_is_taken_and_told(memory):
    state = installed_state(memory)
    request = targets_of(state, "models-echo", ("models/echo/echo-1.skb", 1))
    check(request, state.roots[-1])
    lines = review.describe_request(request)
    assert lines[0].startswith("models-echo 2, valid until")
    assert "adds models/echo/echo-1.skb sha256" in lines[1]


def test_a_mark_on_a_file_that_stays_is_told_too(memory):
    """The content is the same, the version a device reads is not."""
    before = memory.sign(targets_of(installed_state(memory), "models-echo", ("models/echo/echo-1.skb", 1)))
    state = RepositoryState({}, before.state.roots, {**before.state.base, **before.changes})
    request = targets_of(state, "models-echo", ("models/echo/echo-1.skb", 999))
    (line,) = review.describe_request(request)[1:]
    assert line.strip().startswith("marks models/echo/echo-1.skb")
    assert '"version": 999' in line


def test_a_key_cannot_write_on_the_terminal(memory):
    """A hub chooses the names of its keys."""
    state = installed_state(memory)
    request = ceremony.renew_roles(state, ("root",), NOW)
    key = request.root.keys[request.root.roles["timestamp"].keyids[0]]
    key.unrecognized_fields["x-skerry-name"] = "\x1b[2Jroot-1"
    assert review.display_name(key) == key.keyid[:8]
    assert "\x1b" not in "".join(review.describe_request(request))


def bad_path(request):
    _file(request, "models/other/other-1.skb")


def traversal(request):
    _file(request, "models/echo/../other.skb")


def no_version(request):
    _targets(request).targets["models/echo/echo-1.skb"].unrecognized_fields.clear()


def zero_version(request):
    _targets(request).targets["models/echo/echo-1.skb"].unrecognized_fields["custom"] = {"version": True}


def empty_file(request):
    _targets(request).targets["models/echo/echo-1.skb"].length = 0


def weak_hash(request):
    _targets(request).targets["models/echo/echo-1.skb"].hashes = {"md5": "0" * 32}


def delegates_on(request):
    targets = _targets(request)
    targets.delegations = deepcopy(request.state.base["targets"].signed.delegations)


def lives_for_ever(request):
    _targets(request).expires = NOW + timedelta(days=3650)


def lives_no_more(request):
    _targets(request).expires = NOW - timedelta(days=1)


def old_version(request):
    _targets(request).version = 1


def far_version(request):
    _targets(request).version = 2**60


def _targets(request):
    return request.changes["models-echo"].signed


def _file(request, path):
    info = TargetFile.from_data(path, b"x", ["sha256"])
    info.unrecognized_fields["custom"] = {"version": 1}
    _targets(request).targets[path] = info


@pytest.mark.parametrize(
    ("wish", "line"),
    [
        (bad_path, "is not in its folder"),
        (traversal, "is not in its folder"),
        (no_version, "has no version"),
        (zero_version, "has no version"),
        (empty_file, "length or hash is impossible"),
        (weak_hash, "length or hash is impossible"),
        (delegates_on, "may not delegate"),
        (lives_for_ever, "longer than 90 days"),
        (lives_no_more, "is the clock right"),
        (old_version, "the hub went on meanwhile"),
        (far_version, "the hub went on meanwhile"),
    ],
)
def test_a_bad_wish_for_a_family_is_refused(memory, wish, line):
    """The first: family echo lists a file of another family."""
    state = installed_state(memory)
    request = targets_of(state, "models-echo", ("models/echo/echo-1.skb", 1))
    check(request, state.roots[-1])
    wish(request)
    with pytest.raises(RequestError, match=line):
        check(request, state.roots[-1])


def foreign_paths(targets):
    targets.delegations.roles["policy"].paths = ["*/*"]


def second_folder(targets):
    targets.delegations.roles["policy"].paths.append("keys/*")


def strange_name(targets):
    role = DelegatedRole("all", list(targets.delegations.roles["policy"].keyids), 1, terminating=True, paths=["*/*"])
    targets.delegations.roles["all"] = role


def no_keys(targets):
    targets.delegations.roles["policy"].keyids = []


def high_threshold(targets):
    targets.delegations.roles["policy"].threshold = 2


def lists_itself(targets):
    targets.targets["policy/demo.toml"] = TargetFile.from_data("policy/demo.toml", b"x", ["sha256"])


def not_terminating(targets):
    targets.delegations.roles["policy"].terminating = False


@pytest.mark.parametrize(
    ("wish", "line"),
    [
        (foreign_paths, "not a delegation of ours"),
        (second_folder, "not a delegation of ours"),
        (strange_name, "not a delegation of ours"),
        (not_terminating, "not a delegation of ours"),
        (no_keys, "0 keys for a threshold of 1"),
        (high_threshold, "1 keys for a threshold of 2"),
        (lists_itself, "is not in its folder"),
    ],
)
def test_a_bad_delegation_is_refused(memory, wish, line):
    state = installed_state(memory)
    request = ceremony.renew_roles(state, ("targets",), NOW)
    wish(request.targets)
    with pytest.raises(RequestError, match=line):
        check(request, state.roots[-1])


def skips_a_number(root):
    root.version += 1


def drops_a_role(root):
    root.roles["timestamp"].threshold = 2


def inconsistent(root):
    root.consistent_snapshot = False


def another_kind_of_key(root):
    key = root.keys[root.roles["timestamp"].keyids[0]]
    key.scheme = "ecdsa-sha2-nistp256"


@pytest.mark.parametrize(
    ("wish", "line"),
    [
        (skips_a_number, "root 3 where root 2 comes next"),
        (drops_a_role, "threshold"),
        (inconsistent, "consistent snapshots"),
        (another_kind_of_key, "only Ed25519"),
    ],
)
def test_a_bad_root_is_refused(memory, wish, line):
    state = installed_state(memory)
    request = ceremony.renew_roles(state, ("root",), NOW)
    wish(request.root)
    with pytest.raises(RequestError, match=line):
        check(request, state.roots[-1])


def test_another_repository_is_not_followed(memory):
    """A hub that shows the keys a root of its own, with names and numbers as they should be."""
    ours, theirs = installed_state(memory), installed_state(MemoryKeyring())
    request = targets_of(theirs, "models-echo", ("models/echo/echo-1.skb", 1))
    with pytest.raises(RequestError, match="this is another repository"):
        check(request, ours.roots[-1])


def test_an_older_root_than_the_trusted_one_is_not_followed(memory):
    state = installed_state(memory)
    request = ceremony.renew_roles(state, ("root",), NOW)
    with pytest.raises(RequestError, match="older than 2"):
        check(targets_of(state, "models-echo", ("models/echo/echo-1.skb", 1)), request.changes["root"])


def test_a_forged_base_is_not_compared_with(memory):
    """The difference a person reads is the difference to what was really signed before."""
    state = installed_state(memory)
    base = dict(state.base)
    forged = Metadata(deepcopy(base["models-echo"].signed))
    forged.signed.targets["models/echo/echo-9.skb"] = TargetFile.from_data("models/echo/echo-9.skb", b"x", ["sha256"])
    base["models-echo"] = forged
    request = targets_of(RepositoryState(state.online, state.roots, base), "models-echo", ("models/echo/echo-1.skb", 1))
    with pytest.raises(RequestError, match="models-echo as the hub has it is not signed"):
        check(request, state.roots[-1])


def test_a_request_that_changes_nothing_is_none(memory):
    state = installed_state(memory)
    with pytest.raises(RequestError, match="changes nothing"):
        check(SigningRequest(state, {}), state.roots[-1])


def test_a_family_left_without_a_signature_is_refused(memory):
    """New keys for a family, and its list still signed by the old ones: devices would refuse it."""
    state = installed_state(memory)
    request = ceremony.rotate_keys(state, ceremony.KeyRotation(("models-echo",)), memory.draw, NOW)
    memory.sign(request)
    review.check_signatures(request, frozenset({"keys"}))
    forgetful = SigningRequest(state, {"targets": request.changes["targets"]})
    with pytest.raises(RequestError, match="models-echo would be left without"):
        review.check_signatures(forgetful, frozenset({"keys"}))


def test_two_ids_of_one_key_are_one_key(memory):
    """In root, where a threshold of two would be met by one person."""
    state = installed_state(memory)
    request = ceremony.renew_roles(state, ("root",), NOW)
    root = request.root
    raw = bytes.fromhex(root.keys[root.roles["root"].keyids[0]].keyval["public"])
    copied = build_public_key(raw, "root-2")
    copied.keyid = "f" * 64
    root.add_key(copied, "root")
    root.roles["root"].threshold = 2
    with pytest.raises(RequestError, match="root: a key is listed twice"):
        check(request, state.roots[-1])


BUNDLE, HUB = "models/echo/echo-1.skb", "models/echo/echo-1.hub.json"


def both_halves(memory):
    """A request that lists a bundle and its hub part, each naming the other."""
    state = installed_state(memory)
    request = targets_of(state, "models-echo", (BUNDLE, 1), (HUB, 1))
    files = _targets(request).targets
    edge, hub = files[BUNDLE], files[HUB]
    edge.custom["hub"] = hub.hashes["sha256"]
    hub.custom.update({"part": "hub", "edge": edge.hashes["sha256"], "size_bytes": 3 << 30, "files": 4})
    return state, request, edge, hub


def test_both_halves_of_a_version_are_shown_with_the_hub_parts_digest_and_size(memory):
    state, request, _, hub = both_halves(memory)
    check(request, state.roots[-1])
    lines = "\n".join(review.describe_request(request))
    assert f"adds {HUB} sha256 {hub.hashes['sha256']} hub part of {3 << 30} B in 4 files" in lines
    assert f"adds {BUNDLE} sha256" in lines


def alone(files):
    del files[BUNDLE]


def bereft(files):
    del files[HUB]


def of_another_version(files):
    files[HUB].custom["version"] = 2


def of_another_bundle(files):
    files[HUB].custom["edge"] = "0" * 64


def unnamed(files):
    del files[BUNDLE].custom["hub"]


def swapped(files):
    files[HUB].hashes["sha256"] = "0" * 64


def half_revoked(files):
    files[BUNDLE].custom["revoked"] = True


def of_no_size(files):
    files[HUB].custom["size_bytes"] = True


def of_no_kind(files):
    del files[HUB].custom["part"]


@pytest.mark.parametrize(
    ("wish", "line"),
    [
        (alone, "no bundle beside it"),
        (bereft, "its hub part is not listed"),
        (of_another_version, "belongs to another bundle"),
        (of_another_bundle, "belongs to another bundle"),
        (unnamed, "no bundle beside it names"),
        (swapped, "its hub part is not listed"),
        (half_revoked, "belongs to another bundle"),
        (of_no_size, "does not say what hub part"),
        (of_no_kind, "does not say what hub part"),
    ],
)
def test_one_half_without_the_other_is_never_signed(memory, wish, line):
    state, request, *_ = both_halves(memory)
    wish(_targets(request).targets)
    assert review.describe_request(request)  # an unchecked request can be shown
    with pytest.raises(RequestError, match=line):
        check(request, state.roots[-1])
