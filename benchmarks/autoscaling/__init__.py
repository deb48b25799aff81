"""Autoscaling on the real system: a trace is replayed, shards come and go, latency is watched."""
