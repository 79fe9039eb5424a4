# Make the environment on first use, and put it first on PATH. The other scripts source this file.
# TORCHFT_X_VENV names another directory for the environment (default: .venv in the repository).
# The environment is made anew only when pyproject.toml, constraints.txt or the Python version has changed.
# `tools=no source scripts/_env.sh` omits the tools that test and check; a later call without it adds them.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${TORCHFT_X_VENV:-$root/.venv}

wanted=$( (cat "$root/pyproject.toml" "$root/constraints.txt"; python3 --version) | sha256sum | cut -d' ' -f1)
if [ "${tools:-yes}" = no ]; then
    extra='' stamps=("$wanted without tools" "$wanted")
else
    extra='[dev]' stamps=("$wanted")
fi
is_made() {
    local there stamp
    there=$(cat "$venv/.stamp" 2>/dev/null) || return 1
    for stamp in "${stamps[@]}"; do [ "$there" != "$stamp" ] || return 0; done
    return 1
}
if ! is_made; then
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' || {
        echo "$(python3 --version 2>&1) is too old: torchft_x needs Python 3.10 or newer." >&2
        exit 2
    }
    mkdir -p "$(dirname "$venv")"
    (
        flock 9 # two scripts started together must not fill one environment at the same time
        is_made && exit 0
        set -o pipefail
        began=$SECONDS
        torch=$(grep '^torch==' "$root/constraints.txt")
        pip() { # pip that prints name and size of each download, and every 15 s the time so far
            "$venv/bin/python" -m pip install --disable-pip-version-check --progress-bar off "$@" |
                sed -un 's/^ *\(Downloading [^ ]* ([^)]*B)\)$/      \1/p; s/^Installing collected packages:.*/      Installing what was fetched; this takes a minute or two/p' &
            local job=$!
            while sleep 15 9>&- >/dev/null 2>&1 && kill -0 $job 2>/dev/null; do
                echo "      ... $((SECONDS - began)) s so far, $(du -sm "$venv" | cut -f1) MB in place"
            done &
            local clock=$! code=0
            wait $job || code=$?
            kill $clock 2>/dev/null
            return $code
        }
        echo "Making the Python environment in $venv: once, 2 to 10 minutes, about $([ -n "$extra" ] && echo 1.5 || echo 0.9) GB on disk (several more with a CUDA build of PyTorch)." &&
            { [ "$("$venv/bin/python" --version 2>&1)" = "$(python3 --version)" ] || python3 -m venv --clear "$venv"; } &&
            echo "  1/2 $torch" &&
            pip "$torch" &&
            echo "  2/2 torchft_x${extra:+ and its tools}" &&
            pip --constraint "$root/constraints.txt" --editable "$root$extra" &&
            echo "${stamps[0]}" >"$venv/.stamp" &&
            echo "Ready after $((SECONDS - began)) s."
    ) 9>"$venv.lock" </dev/null || {
        echo "The environment in $venv could not be made; what went wrong is printed above." >&2
        exit 1
    }
fi
export PATH="$venv/bin:$PATH" VIRTUAL_ENV="$venv"
unset root venv wanted extra stamps tools
unset -f is_made
