# Sourced by the other scripts: makes the environment on first use, and puts it first on PATH.
# TORCHFT_X_VENV names another place for it (default: .venv in the repository).
# It is made anew only when pyproject.toml, constraints.txt or the Python version have changed.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${TORCHFT_X_VENV:-$root/.venv}

wanted=$( (cat "$root/pyproject.toml" "$root/constraints.txt"; python3 --version) | sha256sum | cut -d' ' -f1)
if [ "$(cat "$venv/.stamp" 2>/dev/null)" != "$wanted" ]; then
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' || {
        echo "$(python3 --version 2>&1) is too old: torchft_x needs Python 3.10 or newer." >&2
        exit 2
    }
    mkdir -p "$(dirname "$venv")"
    (
        flock 9 # two scripts started together must not fill one environment at the same time
        [ "$(cat "$venv/.stamp" 2>/dev/null)" = "$wanted" ] && exit 0
        began=$SECONDS
        torch=$(grep '^torch==' "$root/constraints.txt")
        pip=("$venv/bin/python" -m pip install -qq --disable-pip-version-check)
        echo "Making the Python environment in $venv (once; a few minutes, most of it PyTorch)." &&
            { [ "$("$venv/bin/python" --version 2>&1)" = "$(python3 --version)" ] || python3 -m venv --clear "$venv"; } &&
            echo "  1/2 $torch" &&
            "${pip[@]}" "$torch" &&
            echo "  2/2 torchft_x and its tools" &&
            "${pip[@]}" --constraint "$root/constraints.txt" --editable "$root[dev]" &&
            echo "$wanted" >"$venv/.stamp" &&
            echo "Ready after $((SECONDS - began)) s."
    ) 9>"$venv.lock" </dev/null || {
        echo "The environment in $venv could not be made; what went wrong is printed above." >&2
        exit 1
    }
fi
export PATH="$venv/bin:$PATH" VIRTUAL_ENV="$venv"
unset root venv wanted
