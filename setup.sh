#!/bin/sh
# Everything `make demo` and `make test` need, and nothing twice: .venv, the Python packages, the Mosquitto broker, and
# for development what tests start: the PostgreSQL server, the Chromium browser, GStreamer's RTSP server and strace.
#
#   ./setup.sh [-y] agent|demo|dev|broker
#
# agent: what a device needs and no more. demo: run the product. dev: the same plus tests and linters. broker: Mosquitto
# alone. Packages come as locked, with hashes, in deploy/requirements; UNLOCKED=1 takes their versions alone. -y (or YES=1): install system
# packages without asking. PYTHON names another interpreter. Writes .venv and .cache, and to the system only through
# the package manager, after asking. A second run compares one stamp and ends.
set -eu

root=$(cd "$(dirname "$0")" && pwd -P)
cd "$root"

yes=${YES:-}
if [ "${1:-}" = -y ]; then
    yes=1
    shift
fi
level=${1:-demo}
case $level in agent | demo | dev | broker) ;; *)
    echo "setup: say agent, demo, dev or broker, not '$level'" >&2
    exit 2
    ;;
esac

sys=${SKERRY_SETUP_SYSROOT:-} # tests put a pretended system here

fail() {
    printf 'setup: %s\n' "$*" >&2
    exit 1
}

# --- consent and the system's package manager ------------------------------------------------------------------------

agreed() { # agreed PACKAGE WHY MANAGER: may this package be installed?
    [ -z "$yes" ] || return 0
    [ -z "${CI:-}" ] || return 0
    [ -t 0 ] || fail "$1 is missing ($2) and nobody is here to ask. Run again with YES=1, or install it yourself."
    printf '%s is missing (%s). Install it with %s? [y/N] ' "$1" "$2" "$3"
    read -r answer
    case $answer in y | Y | yes) ;; *) fail "nothing was installed. Install $1 yourself and run this again." ;; esac
}

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null 2>&1; then
        sudo "$@"
    else
        fail "this needs root and there is no sudo: $*"
    fi
}

apt_install() { # needrestart may not restart other people's services because of us: list only
    as_root env DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=l NEEDRESTART_SUSPEND=1 RUNLEVEL=1 \
        apt-get -q -y --no-install-recommends install "$@"
}

apt() {
    apt-cache show "$1" >/dev/null 2>&1 || as_root apt-get -q update
    apt_install "$@" || { as_root apt-get -q update && apt_install "$@"; } || fail "apt-get could not install $*"
}

# --- the broker ------------------------------------------------------------------------------------------------------
# The hub starts its own Mosquitto as a child, so the package's system service must not come up (it would take port
# 1883), and a service that already runs is none of our business: if the program is there, nothing is touched at all.

have_mosquitto() {
    command -v mosquitto >/dev/null 2>&1 && return 0
    for dir in /usr/sbin /usr/local/sbin /opt/homebrew/sbin /opt/homebrew/opt/mosquitto/sbin; do
        [ ! -x "$sys$dir/mosquitto" ] || return 0
    done
    return 1
}

under_systemd() { [ -d "$sys/run/systemd/system" ]; }

# While the package is configured its service may not be started. Under systemd: a run-time mask, which even a crash
# of this script leaves no longer than until the next boot. Elsewhere: a policy-rc.d that speaks of this one service
# only, and only where the administrator (or container image) has none.
policy=$sys/usr/sbin/policy-rc.d
policy_mark="written by the Skerry set-up"
policy_is_ours=

hold_service() { # hold_service NAME
    if under_systemd; then
        as_root systemctl --quiet --runtime mask "$1.service"
    elif [ ! -e "$policy" ] || grep -qs "$policy_mark" "$policy"; then
        # shellcheck disable=SC2016 # the dollar signs are for the script that is written
        printf '#!/bin/sh\n# %s for the length of one apt-get; safe to delete.\nfor word; do case $word in %s | %s.service) exit 101 ;; esac; done\nexit 0\n' "$policy_mark" "$1" "$1" |
            as_root tee "$policy" >/dev/null
        policy_is_ours=1
        as_root chmod 755 "$policy"
    fi
}

release_service() { # release_service NAME
    if under_systemd; then
        as_root systemctl --quiet --runtime unmask "$1.service" || true
    fi
    if [ -n "$policy_is_ours" ]; then
        as_root rm -f "$policy"
        policy_is_ours=
    fi
}

keep_service_off() { # keep_service_off NAME: the package enables its service for the next boot; it was not there before, so nobody wants it
    if under_systemd; then
        as_root systemctl --quiet disable "$1.service" || true
    elif command -v update-rc.d >/dev/null 2>&1; then
        as_root update-rc.d "$1" disable >/dev/null 2>&1 || true
    fi
}

install_idle() { # install_idle PACKAGE: its service is of the same name, and is never started
    # shellcheck disable=SC2064 # the name as it is now
    trap "release_service $1" EXIT
    trap 'exit 130' INT TERM HUP
    hold_service "$1"
    apt "$1"
    release_service "$1"
    trap - EXIT INT TERM HUP
    keep_service_off "$1"
}

broker_by_apt() {
    agreed mosquitto "the MQTT broker that the hub starts as its child" apt-get
    install_idle mosquitto
}

broker_by_brew() {
    agreed mosquitto "the MQTT broker that the hub starts as its child" brew
    HOMEBREW_NO_AUTO_UPDATE=1 brew install mosquitto || fail "brew could not install mosquitto"
}

broker() {
    have_mosquitto && return 0
    if command -v apt-get >/dev/null 2>&1; then
        broker_by_apt
    elif command -v brew >/dev/null 2>&1; then
        broker_by_brew
    else
        fail "the Mosquitto broker (2.0 or newer) is missing; install it with your system's package manager and run this again"
    fi
    have_mosquitto || fail "mosquitto was installed but is not found on PATH"
}

# --- the database server of the tests -----------------------------------------------------------------------------------
# Tests alone start PostgreSQL, each a server of its own in a folder of its own. Where it is missing and cannot be had,
# they are skipped and say so: nothing else waits for it.

have_database() {
    command -v postgres >/dev/null 2>&1 && return 0
    for program in "$sys"/usr/lib/postgresql/*/bin/postgres; do
        [ ! -x "$program" ] || return 0
    done
    return 1
}

database() {
    have_database && return 0
    if command -v apt-get >/dev/null 2>&1; then
        (
            agreed postgresql "the database server that tests start; they are skipped without it" apt-get
            install_idle postgresql
        ) || true
    fi
    have_database || echo "setup: PostgreSQL is not installed: the tests that need it are skipped" >&2
}

# --- the browser of the tests --------------------------------------------------------------------------------------------
# Tests alone start it, to look at the hub's console. Where it is missing and cannot be had, they are skipped and say so.

have_browser() {
    for name in chromium chromium-browser google-chrome-stable; do
        ! command -v "$name" >/dev/null 2>&1 || return 0
    done
    return 1
}

browser() {
    have_browser && return 0
    if command -v apt-get >/dev/null 2>&1; then
        (
            agreed chromium "the browser that tests start; they are skipped without it" apt-get
            apt chromium
        ) || true
    fi
    have_browser || echo "setup: Chromium is not installed: the tests that need it are skipped" >&2
}

# --- the camera of the tests ---------------------------------------------------------------------------------------------
# GStreamer's RTSP server plays recorded frames as a camera would. Where it cannot be had, those tests are skipped and say so.

camera_packages="gir1.2-gst-rtsp-server-1.0 gstreamer1.0-plugins-good python3-gi"

have_camera() {
    for file in "$sys"/usr/lib/*/girepository-1.0/GstRtspServer-1.0.typelib "$sys"/usr/lib/girepository-1.0/GstRtspServer-1.0.typelib; do
        [ ! -e "$file" ] || return 0
    done
    return 1
}

camera() {
    have_camera && return 0
    if command -v apt-get >/dev/null 2>&1; then
        (
            agreed gir1.2-gst-rtsp-server-1.0 "the RTSP server that plays a camera in tests; they are skipped without it" apt-get
            # shellcheck disable=SC2086 # three packages
            apt $camera_packages
        ) || true
    fi
    have_camera || echo "setup: GStreamer's RTSP server is not installed: the tests that need it are skipped" >&2
}

# --- the tracer of the tests ---------------------------------------------------------------------------------------------
# Tests alone run programs under it, to see what these connect to and write. Where it cannot be had, they fail and say so.

tracer() {
    ! command -v strace >/dev/null 2>&1 || return 0
    if command -v apt-get >/dev/null 2>&1; then
        (
            agreed strace "shows tests what a program connects to and writes; they fail without it" apt-get
            apt strace
        ) || true
    fi
    command -v strace >/dev/null 2>&1 || echo "setup: strace is not installed: the tests that need it fail" >&2
}

# --- Python ----------------------------------------------------------------------------------------------------------

oldest=11 newest=14 # 3.11 to 3.14: the packages are locked for these, and have no wheels for others

fits() { # fits PYTHON: one that the lock is for, which is CPython with its global lock; with UNLOCKED=1 a newer one, too
    "$1" -c "import sys, sysconfig
minor = sys.version_info[1] if sys.version_info[0] == 3 else 0
plain = sys.implementation.name == 'cpython' and not sysconfig.get_config_var('Py_GIL_DISABLED')
sys.exit(minor < $oldest or not (plain and minor <= $newest or '${UNLOCKED:-}'))" >/dev/null 2>&1
}

find_python() {
    for name in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11 python}; do
        if command -v "$name" >/dev/null 2>&1 && fits "$name"; then
            command -v "$name"
            return 0
        fi
    done
    fail "Python 3.$oldest to 3.$newest is needed (looked at ${PYTHON:-python3, python3.14, python3.13, python3.12, python3.11}); set PYTHON=/path/to/it, or UNLOCKED=1 to try a newer one"
}

venv_package() { # Debian and Ubuntu split venv off
    "$1" -c 'import ensurepip, venv' >/dev/null 2>&1 && return 0
    command -v apt-get >/dev/null 2>&1 || fail "$1 has no venv module; install it and run this again"
    package=$("$1" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
    agreed "$package" "to make .venv" apt-get
    apt "$package"
}

# The stamp covers what was asked for, where it lies (scripts in .venv hold the path) and the interpreter.
stamp_text() {
    printf '%s %s\n' "$1" "$root"
    .venv/bin/python -c 'import hashlib, sys; print(sys.version.split()[0], *(hashlib.sha256(open(name, "rb").read()).hexdigest() for name in ("pyproject.toml", "constraints.txt", "deploy/requirements/dev.txt", "clients/python/pyproject.toml")))'
}

fresh() { # fresh LEVEL
    [ -x .venv/bin/python ] && [ -f ".venv/stamp-$1" ] && [ "$(stamp_text "$1" 2>/dev/null)" = "$(cat ".venv/stamp-$1")" ]
}

make_venv() {
    if [ -x .venv/bin/python ] && .venv/bin/python -m pip --version >/dev/null 2>&1 && fits .venv/bin/python &&
        grep -qsxF "$root" .venv/made-in; then
        return 0
    fi
    python=$(find_python)
    venv_package "$python"
    rm -rf .venv
    "$python" -m venv .venv || fail "could not make .venv with $python"
    printf '%s\n' "$root" >.venv/made-in
}

machine() { .venv/bin/python -c 'import platform, sys; print("%d.%d" % sys.version_info[:2], platform.system(), platform.machine())'; }

lock_here() { # lock_here LEVEL: print the lock with the hashes of this system, or fail if there is none
    [ -z "${UNLOCKED:-}" ] || return 1
    case $1:$(machine) in
    *:*" Linux x86_64") echo "deploy/requirements/$1.txt" ;;
    agent:*" Linux aarch64") echo deploy/requirements/agent-aarch64.txt ;;
    *) return 1 ;;
    esac
}

pip_install() { .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-input "$@"; }

pip_hashed() { pip_install --no-deps --only-binary :all: --require-hashes -r "$1"; }

# The lock names torch's build for processors alone, which was tested on Python 3.11. The public index has the one with
# CUDA under the same version, whose hashes, for every Python, and further packages stand in a lock of their own.
pip_locked() { # pip_locked LEVEL LOCK
    case $1:$(machine) in
    agent:* | *:"3.11 "*)
        if pip_hashed "$2" 2>.cache/pip-said; then
            cat .cache/pip-said >&2
            return 0
        fi
        if [ "$1" = agent ] || ! grep -q "DO NOT MATCH THE HASHES" .cache/pip-said || ! grep -q "torch==" .cache/pip-said; then
            cat .cache/pip-said >&2
            return 1
        fi
        echo "setup: this index has torch with CUDA and not the build for processors alone: that one is taken, by its own hash (some 3 GB)"
        ;;
    *) echo "setup: torch is locked for this Python as the public index has it, with CUDA (some 3 GB)" ;;
    esac
    grep -v "^torch==" "$2" | cat - deploy/requirements/torch-cuda.txt >.cache/lock-cuda.txt
    pip_hashed .cache/lock-cuda.txt
}

install_packages() { # install_packages LEVEL
    if lock=$(lock_here "$1"); then
        pip_locked "$1" "$lock" || return 1
        case $1 in
        agent) pip_install --no-deps --no-build-isolation -e . ;;
        *) pip_install --no-deps --no-build-isolation -e . -e clients/python ;;
        esac
    else
        echo "setup: the lock has no hashes for this system: its versions are taken without them"
        sed -n 's/ --hash=.*//p' deploy/requirements/dev.txt >.cache/versions.txt
        case $1 in
        agent) pip_install -c .cache/versions.txt -e . ;;
        *) pip_install -c .cache/versions.txt -e ".[$1]" -e clients/python ;;
        esac
    fi
}

packages() { # packages LEVEL
    echo "setup: installing the Python packages ($1) into .venv; the first time takes some minutes"
    rm -f .venv/stamp-agent .venv/stamp-demo .venv/stamp-dev
    install_packages "$1" ||
        fail "pip failed; its message stands above. Running this again goes on where it stopped; UNLOCKED=1 takes other builds of the same versions."
    for done in agent demo dev; do
        stamp_text "$done" >".venv/stamp-$done"
        [ "$1" != "$done" ] || break
    done
}

[ "$level" = agent ] || broker # a device has none
[ "$level" != broker ] || exit 0
[ "$level" != dev ] || database
[ "$level" != dev ] || browser
[ "$level" != dev ] || camera
[ "$level" != dev ] || tracer
fresh "$level" && exit 0

mkdir -p .cache
if command -v flock >/dev/null 2>&1; then # two terminals, one install
    exec 9>.cache/setup.lock
    flock 9
    fresh "$level" && exit 0
fi
make_venv
packages "$level"
