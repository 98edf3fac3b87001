#!/bin/sh
# Fails if the disk that holds the cache has less space than a run of the tests needs. Without this, some test would
# fail later, for lack of space. While test-e2e runs, its nodes' disks take about 16 GB, and what a run builds from a
# fresh clone takes another 16 GB (2026-11-29).
set -eu

cache=${FLEXLVM_CACHE:-.cache}
need=20 # GiB
[ -n "$(find "$cache/" -maxdepth 1 -name 'kubernetes-*' -print -quit)" ] || need=36
free=$(df -Pk "$cache" | awk 'END { print int($4 / 1048576) }')
if [ "$free" -lt "$need" ]; then
	echo "the tests need $need GiB of free disk space, and the file system of $cache has $free:" \
		"remove $cache/run unless a test or a cluster runs (those that were killed leave their nodes' disks there)," \
		"or Go's build cache (go clean -cache)" >&2
	exit 1
fi
