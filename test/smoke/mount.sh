#!/bin/sh
# The life of a volume: first mount, exact size, read-only mount, unmount, and the same data at the
# next mount.
set -u
# shellcheck source=test/smoke/lib.sh
. "$(dirname "$0")/lib.sh"
make_group

size=$((64 * mib))
one=$(target one)
two=$(target two)
volume=pvc-6e0bf2d2-3f6d-4b0e-9a55-0b9a8a3f7c11

succeeds "the first mount makes the volume" mount "$one" "$(options $volume $size)"
check "it is mounted" is_mounted "$one"
equal "df shows the size, and nothing used" "$(capacity "$one")" "$size 0"
equal "it is empty" "$(ls -A "$one")" ""
equal "one logical volume was made" "$(lvs --noheadings -o lv_name "$group" | tr -d ' ')" "$volume"
check "a file can be written" sh -c "echo precious >$one/file && sync"

succeeds "a mount where it is mounted already" mount "$one" "$(options $volume $size)"
equal "changes nothing" "$(grep -c " $one " /proc/self/mounts)" 1

succeeds "a second pod mounts it" mount "$two" "$(options $volume $size)"
equal "and sees the first one's file" "$(cat "$two/file")" precious
succeeds "the second pod leaves" unmount "$two"

succeeds "a read-only pod mounts it" mount "$two" "$(rw=ro && options $volume $size)"
equal "and can read" "$(cat "$two/file")" precious
refute "and cannot write" sh -c "echo x >$two/other"
check "while the first still can" sh -c "echo x >$one/other && rm $one/other"
succeeds "the read-only pod leaves" unmount "$two"

exec 9<"$one/file"
fails "unmount of a volume in use" "in use" unmount "$one"
exec 9<&-
check "leaves it mounted" is_mounted "$one"
succeeds "unmount" unmount "$one"
refute "it is not mounted any more" is_mounted "$one"
equal "its directory is empty" "$(ls -A "$one")" ""
succeeds "unmount again" unmount "$one"

succeeds "the next mount" mount "$two" "$(options $volume $size)"
equal "finds the data" "$(cat "$two/file")" precious
succeeds "unmount" unmount "$two"

lvchange --activate n "$group/$volume"
succeeds "a mount after the volume was inactive, as after a reboot" mount "$one" "$(options $volume $size)"
equal "finds the data" "$(cat "$one/file")" precious
succeeds "unmount" unmount "$one"

succeeds "the first mount may be read-only" mount "$one" "$(rw=ro && options another $size)"
refute "and nobody can write" sh -c "echo x >$one/file"
succeeds "unmount" unmount "$one"

pids=
for i in 1 2 3 4 5 6 7 8 9 10; do
	"$driver" mount "$(target "c$i")" "$(options concurrent $size)" >"$work/reply$i" 2>&1 &
	pids="$pids $!"
done
# shellcheck disable=SC2086 # a list
wait $pids
equal "ten pods mount a new volume at once" "$(cat "$work"/reply* | sort | uniq -c | tr -s ' ')" ' 10 {"status":"Success"}'
equal "all are mounted" "$(grep -c " $work/pods/c" /proc/self/mounts)" 10
equal "one volume was made" "$(lvs --noheadings --select lv_name=concurrent -o lv_name "$group" | wc -l)" 1
