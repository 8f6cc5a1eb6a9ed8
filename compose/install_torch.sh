#!/bin/sh
# The pinned torch for a Python, from PyTorch's own index of the builds that are wanted: install_torch.sh PYTHON BUILDS
#
#   cpu, cu130, rocm7.2, …   these builds; uv knows PyTorch's addresses
#   auto                     by this machine: CUDA where there is a driver, else cpu
#   pip                      what pip's own configuration brings, which on Linux is CUDA unless it says otherwise
#
# What else torch needs is pip's business, and so is torch where PyTorch's index cannot be reached. Run where
# constraints.txt is.
set -eu
python=$(command -v "$1") builds=$2  # its path: uv takes a bare name for that of a virtual environment
[ "$builds" != pip ] || exit 0
"$python" -m pip install --quiet -c constraints.txt uv
if ! "$python" -m uv --quiet pip compile --torch-backend "$builds" /dev/null >/dev/null; then
    echo "TORCH=$builds is none of PyTorch's builds: give cpu, auto, one of those above, or pip" >&2
    exit 2
fi
"$python" -m uv --quiet pip install --python "$python" --torch-backend "$builds" --no-deps -c constraints.txt torch ||
    echo "torch is not to be had from PyTorch's index of $builds builds: it comes as pip is configured" >&2
