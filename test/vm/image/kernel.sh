#!/bin/sh
# Puts Debian's cloud kernel and its modules into the root file system $1.
# The package is unpacked, not installed: installing it wants an initramfs
# generator and runs it, and we make our own initramfs.
set -eu
root=$1
archives=/var/cache/apt/archives

package=$(chroot "$root" apt-cache depends linux-image-cloud-amd64 |
	sed -n 's/^ *Depends: *\(linux-image-[0-9].*\)/\1/p' | head -n 1)
[ -n "$package" ] || { echo "images: apt knows no kernel behind linux-image-cloud-amd64" >&2; exit 1; }

chroot "$root" sh -c "cd $archives && apt-get -q=2 -o APT::Sandbox::User=root download '$package'"
# Not unpacked onto /: that would replace the link /lib by a directory.
chroot "$root" sh -c "dpkg -x $archives/${package}_*.deb /kernel"
mv "$root/kernel/lib/modules" "$root/usr/lib/modules"
mv "$root"/kernel/boot/vmlinuz-* "$root/boot/"
rm -rf "$root/kernel"
chroot "$root" depmod "$(ls "$root/usr/lib/modules")"
