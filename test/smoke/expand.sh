#!/bin/sh
# Growth of a mounted and of an unmounted volume.
set -u
# shellcheck source=test/smoke/lib.sh
. "$(dirname "$0")/lib.sh"
make_group

small=$((64 * mib))
large=$((500 * mib))
larger=$((600 * mib))
dir=$(target one)
born=$(options grows $small)
grow() { call expandfs "$(expand_options grows $small)" "" "$dir" "$@"; }

succeeds "mount" mount "$dir" "$born"
echo precious >"$dir/file"
grow $large $small
equal "growth of a mounted volume" "$status" Success
equal "df shows the new size" "$(capacity "$dir" | cut -d' ' -f1)" $large
equal "the data is there" "$(cat "$dir/file")" precious
check "the new space can be written to" dd if=/dev/zero of="$dir/fill" bs=$mib count=400
fill "$dir/rest"
equal "up to exactly the new size" "$(capacity "$dir")" "$large $large"
rm "$dir/fill" "$dir/rest"

grow $large $small
equal "the same growth again" "$status" Success
equal "changes nothing" "$(capacity "$dir" | cut -d' ' -f1)" $large
grow $small $small
equal "a size that it exceeds already" "$status" Success
equal "does not shrink it" "$(capacity "$dir" | cut -d' ' -f1)" $large
grow $((1024 * 1024 * mib)) $large
equal "a size that the group cannot hold is refused" "$status" Failure
case $message in *"not enough free space"*) pass "and the message says so" ;; *) flunk "and the message says so" "$message" ;; esac
equal "after which nothing has changed" "$(capacity "$dir" | cut -d' ' -f1)" $large

succeeds "unmount" unmount "$dir"
grow $larger $large
equal "growth of a volume that is not mounted" "$status" Success
succeeds "a mount with the options it was born with" mount "$dir" "$born"
equal "shows the new size" "$(capacity "$dir" | cut -d' ' -f1)" $larger
equal "the data is there" "$(cat "$dir/file")" precious
succeeds "unmount" unmount "$dir"
