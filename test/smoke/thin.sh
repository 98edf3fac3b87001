#!/bin/sh
# A thin pool: created by vg create --thin, with volumes of exactly their size that grow, then
# overcommitted and filled.
set -u
# shellcheck source=test/smoke/lib.sh
. "$(dirname "$0")/lib.sh"
find_device
if ! modprobe dm-thin-pool 2>/dev/null && [ ! -d /sys/module/dm_thin_pool ]; then
	bail_out "this kernel has no dm-thin-pool, so nothing of thin pools can be tested here"
fi

refute "vg create refuses a size for a pool that is not asked for" "$driver" vg create --name "$group" --thin-size 700MiB "$device"
refute "and a pool name that LVM reserves" "$driver" vg create --name "$group" --thin --thin-pool snapshot1 "$device"
make_group_with --thin --thin-size 700MiB
equal "LVM has the pool, with our tags" "$(lvs --noheadings -o lv_tags "$group/thinpool" | tr -d ' ')" "flexlvm,flexlvm.kind=pool"
equal "it gives errors when it is full" "$(lvs --noheadings -o lv_when_full "$group/thinpool" | tr -d ' ')" error
equal "it is no volume" "$("$driver" volumes list --group "$group" | wc -l)" 1

thin='"layout":"thin","thinPool":"thinpool"'
small=$((64 * mib))
large=$((500 * mib))
dir=$(target one)
succeeds "mount" mount "$dir" "$(options one $small "$thin")"
equal "df shows exactly the size" "$(capacity "$dir")" "$small 0"
fill "$dir/fill"
check "writing ends for want of space" grep -q "No space left on device" "$work/dd"
equal "at exactly that byte" "$(stat -c %s "$dir/fill")" "$small"
call expandfs "$(expand_options one $small | sed "s/}\$/,$thin}/")" "" "$dir" $large $small
equal "growth" "$status" Success
equal "df shows the new size" "$(capacity "$dir" | cut -d' ' -f1)" $large
other=$(target two)
succeeds "a second volume, more than there is" mount "$other" "$(options two $large "$thin")"

fill "$dir/fill"
equal "the first is filled to the byte" "$(stat -c %s "$dir/fill")" "$large"
dd if=/dev/zero of="$other/fill" bs=$mib conv=fsync 2>"$work/dd"
check "the second is refused what the pool does not have" grep -qE "No space left on device|Input/output error" "$work/dd"
check "the first is whole" sh -c "cat '$dir/fill' >/dev/null"
succeeds "unmount of the second" unmount "$other"
fails "a third is refused, in numbers" "delete claims that nobody needs (never logical volumes by hand), or extend it" mount "$(target three)" "$(options three $small "$thin")"
succeeds "unmount of the first" unmount "$dir"
drop one
succeeds "there is room again: mount of the second" mount "$other" "$(options two $large "$thin")"
rm -f "$other/fill"
check "and it can be written to" dd if=/dev/zero of="$other/fill" bs=$mib count=400 conv=fsync
succeeds "unmount" unmount "$other"
fails "another pool's name is refused" "nowhere" mount "$(target four)" "$(options four $small '"layout":"thin","thinPool":"nowhere"')"
