#!/usr/bin/env bash
# A machine for shards: start-worker.sh HEAD[:PORT] [arguments of `ray start`, as --block].
# Its labels say what GPUs and slices it has (`python -m actors.devices` shows the whole).
set -euo pipefail
head=${1:?the address of the head}
shift
source "$(dirname "$0")/environment.sh"
[[ $head == *:* ]] || head=$head:6379
exec ray start --address="$head" --labels="$(python -m actors.devices --labels)" \
    --disable-usage-stats "$@"
