#!/bin/sh
# Builds the root disk and the kernel of guests for arm64, on a machine that runs no
# program for arm64: the packages are unpacked, and what their scripts would do is done
# here as far as guests need it.
#
# usage: build.sh OUT DEBS
#   OUT   empty directory that gets node.ext4, vmlinuz and modules/
#   DEBS  directory that keeps downloaded packages between builds
# shellcheck disable=SC2016 # apt and the hooks' shell expand what stands in '…'
set -eu
export LC_ALL=C

release=bookworm
here=$(cd "$(dirname "$0")" && pwd)
out=$1
debs=$2
root=$out/rootfs

say() { echo "images for arm64: $*" >&2; }
die() { say "$*"; exit 1; }

"$here/../../setup.sh" arm64 || die "a tool is missing"

# The mirrors of this machine's apt, which have every architecture of Debian.
sources() {
	apt-get indextargets --format '$(SITE) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
		awk -v r="$release" '$3 == "main" && ($2 == r || $2 == r "-updates" || $2 == r "-security") {
			print "deb", $1, $2, $3
		}' | sort -u
}
[ -n "$(sources)" ] || apt-get -qq update
[ -n "$(sources)" ] || die "apt has no index of Debian $release; add its main component to apt's sources"

mkdir -p "$debs"
apt-config dump | grep -E '^Acquire::(https?::|Retries|Check-|ForceIPv)' | grep -v '""' >"$out/apt.conf" || true
packages=$(sed -e 's/#.*//' "$here/packages" | tr -s ' \n' ',' | sed -e 's/^,//' -e 's/,$//')

say "unpacking Debian $release for arm64 (about a minute)"
sources | mmdebstrap --quiet --mode=root --variant=extract --architectures=arm64 \
	--include="$packages" \
	--aptopt="$out/apt.conf" \
	--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr \
	--skip=cleanup/apt/cache \
	--setup-hook='mkdir -p "$1/var/cache/apt/archives"' \
	--setup-hook="sync-in '$debs' /var/cache/apt/archives" \
	--customize-hook="sync-out /var/cache/apt/archives '$debs'" \
	--customize-hook='rm -rf "$1"/var/cache/apt/archives/*' \
	"$release" "$root" -
rm -f "$out/apt.conf"

kernel=$(ls "$root/usr/lib/modules")
mv "$root/boot/vmlinuz-$kernel" "$out/vmlinuz"
depmod -b "$root" "$kernel"

say "collecting the initrd's modules"
mkdir "$out/modules"
sed -e 's/#.*//' "$here/../image/initrd-modules" | while read -r module; do
	[ -n "$module" ] || continue
	modprobe -d "$root" -S "$kernel" --show-depends "$module"
done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' >"$out/insmod"
n=10
while read -r file; do
	cp "$file" "$out/modules/$n-$(basename "$file")"
	n=$((n + 1))
done <"$out/insmod"
rm "$out/insmod"

say "making the root disk"
for file in passwd group; do
	cp "$root/usr/share/base-passwd/$file.master" "$root/etc/$file"
done
ln -sf mawk "$root/usr/bin/awk"
[ -e "$root/usr/bin/sh" ] || ln -s dash "$root/usr/bin/sh"
: >"$root/etc/resolv.conf"
echo node >"$root/etc/hostname"
echo '127.0.0.1 localhost' >"$root/etc/hosts"
mke2fs -q -t ext4 -L root -d "$root" "$out/node.ext4" 2G >/dev/null
rm -rf "$root"
