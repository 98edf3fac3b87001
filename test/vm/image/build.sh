#!/bin/sh
# Builds the images of the test bed's guests from Debian packages.
#
# usage: build.sh OUT DEBS INIT
#   OUT   empty directory that gets rootfs/ and vmlinuz
#   DEBS  directory that keeps downloaded packages between builds
#
# The package source is whatever apt of this machine uses for Debian.
# shellcheck disable=SC2016 # apt and the hooks' shell expand what stands in '…'
set -eu
export LC_ALL=C

release=bookworm
here=$(cd "$(dirname "$0")" && pwd)
out=$1
debs=$2
root=$out/rootfs

say() { echo "images: $*" >&2; }
die() { say "$*"; exit 1; }

# apt_sources prints the one-line sources of our release that this machine's
# apt has indexes of.
apt_sources() {
	apt-get indextargets --format '$(SITE) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
		awk -v r="$release" '
			$3 == "main" && ($2 == r || $2 == r "-updates" || $2 == r "-security") {
				print "deb", $1, $2, $3
			}' | sort -u
}

# apt_options prints those settings of this machine's apt that decide whether
# and how it reaches its sources.
apt_options() {
	apt-config dump | grep -E '^Acquire::(https?::|Retries|Check-|ForceIPv)' | grep -v '""' || true
}

packages() {
	sed -e 's/#.*//' "$here/packages" | tr -s ' \n' ',' | sed -e 's/^,//' -e 's/,$//'
}

sources=$(apt_sources)
if [ -z "$sources" ]; then
	say "fetching apt's index"
	apt-get -qq update
	sources=$(apt_sources)
fi
case "$sources" in
*" $release main"*) ;;
*) die "apt has no index of Debian $release; add its main component to apt's sources" ;;
esac

mkdir -p "$debs"
apt_options >"$out/apt.conf"

say "installing Debian $release into a root file system (about a minute)"
printf '%s\n' "$sources" | mmdebstrap --quiet --mode=root --variant=minbase \
	--include="$(packages)" \
	--aptopt="$out/apt.conf" \
	--dpkgopt='path-exclude=/usr/share/doc/*' \
	--dpkgopt='path-exclude=/usr/share/man/*' \
	--dpkgopt='path-exclude=/usr/share/locale/*' \
	--dpkgopt='path-exclude=/usr/share/info/*' \
	--skip=download/empty --skip=essential/unlink --skip=cleanup/apt/cache \
	--setup-hook='mkdir -p "$1/var/cache/apt/archives"' \
	--setup-hook="sync-in '$debs' /var/cache/apt/archives" \
	--customize-hook="'$here/kernel.sh' \"\$1\"" \
	--customize-hook="sync-out /var/cache/apt/archives '$debs'" \
	--customize-hook='rm -rf "$1"/var/cache/apt/archives/*' \
	"$release" "$root" -

mv "$root"/boot/vmlinuz-* "$out/vmlinuz"
rm -f "$out/apt.conf"

say "collecting the initrd's modules"
kernel=$(ls "$root/usr/lib/modules")
mkdir "$out/modules"
sed -e 's/#.*//' "$here/initrd-modules" | while read -r module; do
	[ -n "$module" ] || continue
	chroot "$root" modprobe --show-depends -S "$kernel" "$module" </dev/null
done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' >"$out/insmod"
n=10
while read -r file; do
	cp "$root$file" "$out/modules/$n-$(basename "$file")"
	n=$((n + 1))
done <"$out/insmod"
rm "$out/insmod"

say "making the root disk"
: >"$root/etc/resolv.conf"
echo node >"$root/etc/hostname"
echo '127.0.0.1 localhost' >"$root/etc/hosts"
mke2fs -q -t ext4 -L root -d "$root" "$out/node.ext4" 6G >/dev/null
rm -rf "$root"
