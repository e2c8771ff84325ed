# Sourced by the scripts beside it: `ensure_venv [EXTRA,EXTRA]` makes .venv in the repository with
# the project and its extras in it, unless it is there already. PYTHON names the Python to use.

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)

die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.14 python}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    die "no Python 3.11 or newer found; install one, or set PYTHON=/path/to/python"
}

ensure_venv() {
    local extras=${1:+[$1]} venv=$root/.venv python stamp wanted
    if [ ! -x "$venv/bin/python" ]; then
        python=$(find_python)
        echo "making .venv with $("$python" --version)"
        "$python" -m venv "$venv" ||
            die "$python could not make a virtual environment; on Debian and Ubuntu install python3-venv"
    fi
    # Installed again only when the list of what to install has changed.
    stamp=$venv/draftsmith${1:+-${1//,/-}}.stamp
    wanted=$(cksum <"$root/pyproject.toml")
    if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
        echo "installing draftsmith$extras into .venv"
        "$venv/bin/python" -m pip install -qq --disable-pip-version-check \
            --editable "$root$extras" ||
            die "pip could not install draftsmith$extras; check the network and the lines above"
        printf '%s\n' "$wanted" >"$stamp"
    fi
    PATH=$venv/bin:$PATH
}
