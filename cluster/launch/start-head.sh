#!/usr/bin/env bash
# The head: Ray's control store, the Fleet and the scheduler. With --num-cpus=0 it runs no shard.
# Its label lets a configuration keep doors off it (docs/operations.md, loss of the head).
# Further arguments go to `ray start`; with --block a service manager can watch it.
set -euo pipefail
source "$(dirname "$0")/environment.sh"
exec ray start --head --port="${RAY_PORT:-6379}" --num-cpus=0 \
    --labels=shoal.io/head=true --disable-usage-stats "$@"
