# Make environments with other projects' packages, and a Kubernetes control plane, on first use. Compiling the latter
# takes five minutes. ./scripts/test --extended sources this file after _env.sh.
# TORCHFT_X_PEER_VENV, TORCHFT_X_NIGHTLY_VENV and TORCHFT_X_TRAINERS_VENV name other directories for the environments.

torch=$(grep '^torch==' constraints.txt)

environment() { # DIRECTORY STAMP: make the environment; true if packages have to be installed
    [ "$(cat "$1/.stamp" 2>/dev/null)" != "$2" ] || return 1
    echo "Making the environment $1."
    [ -x "$1/bin/python" ] || python3 -m venv "$1"
}
install() { "$1/bin/python" -m pip install -qq --disable-pip-version-check "${@:2}" </dev/null; }

log=$(mktemp)
./scripts/kubernetes </dev/null >"$log" 2>&1 &
kubernetes=$!

# torchft, which the tests marked `peer` run in this environment
peer=${TORCHFT_X_PEER_VENV:-.venv-peer}
wanted="$torch torchdata"
if environment "$peer" "$wanted"; then
    install "$peer" "$torch" && install "$peer" torchft-nightly numpy torchdata &&
        echo "$wanted" >"$peer/.stamp" || return
fi
TORCHFT_X_PEER_PYTHON=$(cd "$peer/bin" && pwd)/python

# torchx-nightly, which can't be installed beside torchx: both own the import package torchx
nightly=${TORCHFT_X_NIGHTLY_VENV:-.venv-nightly}
line=torchx-nightly==2026.10.26
wanted="$torch $line kubernetes"
if environment "$nightly" "$wanted"; then
    install "$nightly" "$torch" && install "$nightly" "$line" "setuptools>=77" "grpcio>=1.60" "protobuf>=6.31,<8" \
        fsspec h11 prometheus-client rich kubernetes kubernetes-validate pytest pytest-timeout hypothesis &&
        echo "$wanted" >"$nightly/.stamp" || return
fi
TORCHFT_X_NIGHTLY_PYTHON=$(cd "$nightly/bin" && pwd)/python

# Trainers of HuggingFace, Lightning and torchtitan: 600 MB besides the packages of the main environment, which they use
trainers=${TORCHFT_X_TRAINERS_VENV:-.venv-trainers}
main=$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
packages=(transformers==5.24.0 accelerate==1.15.0 lightning==2.6.6 wandb==0.31.0)
titan=(torchtitan==0.3.0 tyro==1.0.17 shtab==1.13.0 typeguard==4.6.1 spmd_types==0.2.3) # its used requirements only
imports=("datasets>=3.6,<4.8" grain torchdata tensorboard==2.21.0 einops pillow safetensors)
wanted="$main ${packages[*]} ${titan[*]} ${imports[*]}"
if environment "$trainers" "$wanted"; then
    echo "$main" >"$("$trainers/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/main.pth"
    install "$trainers" "${packages[@]}" "${imports[@]}" && install "$trainers" --no-deps "${titan[@]}" &&
        echo "$wanted" >"$trainers/.stamp" || return
fi
TORCHFT_X_TRAINERS_PYTHON=$(cd "$trainers/bin" && pwd)/python

export TORCHFT_X_PEER_PYTHON TORCHFT_X_NIGHTLY_PYTHON TORCHFT_X_TRAINERS_PYTHON
wait $kubernetes || { cat "$log" && return 1; }
rm "$log"
unset -f environment install
unset torch peer nightly line wanted trainers main packages titan imports log kubernetes
