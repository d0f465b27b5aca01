#!/bin/sh
# Create the virtual environment that everything else runs in, and install the package and its tools into it.
#   deploy/local/environment.sh .venv
# PYTHON names the interpreter to build on; without it, the first Python 3.11 or newer in PATH is taken.
set -eu
venv=$1

fail() {
    echo "setup: $*" >&2
    exit 1
}

new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

find_python() {
    for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
        if new_enough "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
    fail "no Python 3.11 or newer${PYTHON:+ behind PYTHON=$PYTHON}: install one (Debian: apt install python3)" \
        "or name it with PYTHON=/path/to/python3 make ..."
}

can_make_venv() {
    "$1" -c 'import ensurepip, venv' 2>/dev/null
}

# Speaks only when it fails.
apt() {
    said=$(DEBIAN_FRONTEND=noninteractive apt-get --quiet "$@" 2>&1) || {
        echo "$said" >&2
        fail "apt-get could not install python3-venv: see its message above"
    }
}

# Debian leaves the venv module's other half to a package of its own.
install_venv() {
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
        fail "$1 cannot create virtual environments: install its venv module (Debian: apt install python3-venv)"
    fi
    echo "Installing Debian's python3-venv with apt-get"
    apt update
    apt install --yes --no-install-recommends python3-venv
    can_make_venv "$1" || fail "$1 still cannot create virtual environments: install its venv module"
}

python=$(find_python)
can_make_venv "$python" || install_venv "$python"
echo "Setting up $venv with $("$python" -V), which takes a minute"
"$python" -m venv --clear "$venv" || fail "cannot create $venv: see the message above"
PIP_CONSTRAINT=constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 \
    "$venv/bin/python" -m pip install --quiet --editable '.[dev]' ||
    fail "pip could not install the package: see its message above; a package index must be within reach"
