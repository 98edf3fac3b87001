#!/bin/sh
# df shows the requested size to the byte, and writes stop at exactly that byte.
set -u
# shellcheck source=test/smoke/lib.sh
. "$(dirname "$0")/lib.sh"
make_group

free=$(vgs --noheadings --nosuffix --units b -o vg_free "$group" | tr -d ' ')
for m in 1 64 300 1024 2048; do
	size=$((m * mib))
	if [ $((size + size / 8 + 300 * mib)) -gt "$free" ]; then
		echo "# $m MiB does not fit on this disk"
		continue
	fi
	dir=$(target "exact$m")
	succeeds "$m MiB: mount" mount "$dir" "$(options "exact$m" $size)"
	equal "$m MiB: df shows it, and nothing used" "$(capacity "$dir")" "$size 0"
	fill "$dir/fill"
	check "$m MiB: writing ends for want of space" grep -q "No space left on device" "$work/dd"
	equal "$m MiB: at exactly that byte" "$(stat -c %s "$dir/fill")" "$size"
	equal "$m MiB: df shows it full" "$(capacity "$dir")" "$size $size"
	rm "$dir/fill"
	sync
	tries=0 # XFS subtracts removed files in the background
	until [ "$(capacity "$dir")" = "$size 0" ] || [ $tries = 100 ]; do
		sleep 0.1
		tries=$((tries + 1))
	done
	equal "$m MiB: df shows it empty again" "$(capacity "$dir")" "$size 0"
	fill "$dir/fill"
	equal "$m MiB: it can be filled once more" "$(stat -c %s "$dir/fill")" "$size"
	succeeds "$m MiB: unmount" unmount "$dir"
	drop "exact$m"
done
