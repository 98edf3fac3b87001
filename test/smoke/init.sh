#!/bin/sh
# Calls that need no disk: capabilities, unknown verbs, and bad input. Nothing is created.
set -u
# shellcheck source=test/smoke/lib.sh
. "$(dirname "$0")/lib.sh"

call init
equal "init says what the driver can do" "$message" '{"status":"Success","capabilities":{"attach":false,"fsGroup":true,"requiresFSResize":true,"selinuxRelabel":true,"supportsMetrics":true}}'
for verb in getvolumename attach detach waitforattach isattached mountdevice unmountdevice expandvolume nonsense ""; do
	call "$verb" '{}'
	equal "verb \"$verb\" is not supported" "$message" '{"status":"Not supported"}'
done

dir=$(target bad)
echo data >"$work/file"
ln -s "$dir" "$work/link"
mkdir "$work/full"
echo data >"$work/full/file"

fails "mount without arguments" "arguments of mount" mount
fails "mount without options" "arguments of mount" mount "$dir"
fails "mount with too many arguments" "arguments of mount" mount "$dir" "$(options a 4096)" x
fails "unmount without arguments" "arguments of unmount" unmount
fails "expandfs without arguments" "arguments of expandfs" expandfs
fails "options that are no JSON" "options" mount "$dir" "size=1"
fails "options that are an array" "options" mount "$dir" '["size"]'
fails "options that are cut short" "options" mount "$dir" '{"size":"1"'
fails "an option twice" "size: is given twice" mount "$dir" '{"size":"1","size":"2"}'
fails "an option that is a number" "size: is a number" mount "$dir" '{"size":1}'
fails "an unknown option" "colour: is not an option" mount "$dir" "$(options a 4096 '"colour":"blue"')"
fails "a missing option" "size, volumeGroup: is missing" mount "$dir" '{"kubernetes.io/readwrite":"rw","kubernetes.io/pvOrVolumeName":"a","kubernetes.io/pod.namespace":"a"}'
fails "a secret" "remove secretRef" mount "$dir" "$(options a 4096 '"kubernetes.io/secret/key":"aHVudGVyMg=="')"
case $message in *aHVudGVyMg*) flunk "the secret is not repeated" "$message" ;; *) pass "the secret is not repeated" ;; esac
for bad in -1 0 1.5 1Gi 9223372036854775808 ""; do
	fails "size \"$bad\"" "size" mount "$dir" "$(options a "$bad")"
done
for bad in a/b .. -f snapshot1 pvmove0 a_tmeta "$(printf '%0300d' 0)" ""; do
	fails "name \"$(printf %.20s "$bad")\"" "kubernetes.io/pvOrVolumeName" mount "$dir" "$(options "$bad" 4096)"
	fails "option volume \"$(printf %.20s "$bad")\"" "volume" mount "$dir" "$(options a 4096 "\"volume\":\"$bad\"")"
done
fails "a layout that there is not" "layout" mount "$dir" "$(options a 4096 '"layout":"raid6"')"
fails "stripes of a linear volume" "stripes" mount "$dir" "$(options a 4096 '"stripes":"2"')"
fails "a file system that is not XFS" "kubernetes.io/fsType" mount "$dir" "$(options a 4096 | sed 's/fsType":""/fsType":"ext4"/')"
fails "a target that is not absolute" "mount directory" mount pods/x "$(options a 4096)"
fails "a target that is a file" "mount directory" mount "$work/file" "$(options a 4096)"
fails "a target that is missing" "mount directory" mount "$work/missing" "$(options a 4096)"
fails "a target that is a symbolic link" "mount directory" mount "$work/link" "$(options a 4096)"
fails "a target that is not empty" "not empty" mount "$work/full" "$(options a 4096)"
fails "a group that does not exist" "volume group not found" mount "$dir" "$(options a 4096)"
fails "growth by a word" "new size" expandfs "$(expand_options a 4096)" "" "$dir" lots 4096
fails "growth to less" "never shrinks" expandfs "$(expand_options a 8192)" "" "$dir" 4096 8192
succeeds "unmount of a directory on which nothing is mounted" unmount "$dir"
succeeds "unmount of a directory that does not exist" unmount "$work/missing"
equal "the directory is as it was" "$(ls -A "$dir")" ""
