#!/bin/sh
# Puts the kernel of a Debian release into a folder of its own, with an initial file system that recovers the XFS volume on the first
# disk (its log on the second, if there is one), looks at it with online scrub where the kernel has it, and says so on the console;
# or, with uxfs.start=PROGRAM among the kernel's options, runs that program of the volume. QEMU boots it without KVM in some seconds.
# Nothing else on the machine changes.
# Usage: other-kernel.sh RELEASE DIR XFSPROGS    (bullseye: 5.10, bookworm: 6.1, trixie: 6.12, sid: the newest)
set -eu
release=$1 dir=$2 xfsprogs=$3
src=/etc/apt/sources.list.d/debian.sources
[ -r "$src" ] || { echo "other-kernel: no $src to learn the archive from" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/debs" "$work/root"
awk -v r="$release" 'BEGIN { RS = ""; ORS = "\n\n" } !/security/ { gsub(/Suites:[^\n]*/, "Suites: " r); print }' "$src" > "$work/apt.sources"
apt() {
    program=$1
    shift
    "$program" -q -o APT::Sandbox::User=root -o Dir::Etc::sourcelist="$work/apt.sources" -o Dir::Etc::sourceparts=- \
        -o Dir::State::lists="$work/lists" -o Dir::Cache="$work/cache" "$@"
}
depends() { apt apt-cache depends "$1" | sed -n 's/.*Depends: //p'; }
apt apt-get update > /dev/null
image=$(depends linux-image-cloud-amd64 | grep '^linux-image-[0-9]' | head -n 1)
[ -n "$image" ] || { echo "other-kernel: Debian has no kernel of $release any more" >&2; exit 1; }
# Later releases have the kernel and its modules in packages of their own.
parts=$(depends "$image" | grep -E '^linux-(binary|modules)-[0-9]' || true)
[ "$release" = sid ] && scrub="$(apt apt-cache pkgnames libicu | grep -E '^libicu[0-9]+$' | sort -V | tail -n 1) libstdc++6" || scrub=
# shellcheck disable=SC2086
( cd "$work/debs" && apt apt-get download ${parts:-$image} $scrub > /dev/null )
for d in "$work"/debs/*.deb; do dpkg -x "$d" "$work/root"; done
[ -d "$work/root/lib/modules" ] || { mkdir -p "$work/root/lib"; ln -s ../usr/lib/modules "$work/root/lib/modules"; }
version=$(ls "$work/root/lib/modules")
modules=$work/root/lib/modules/$version

init=$work/init
mkdir -p "$init/bin" "$init/dev" "$init/proc" "$init/sys" "$init/mnt" "$init/lib/modules/$version"
cp "$(command -v busybox)" "$init/bin/busybox"
for p in sh mount umount modprobe dmesg poweroff tail sed grep tr switch_root; do ln -s busybox "$init/bin/$p"; done
/sbin/depmod -b "$work/root" "$version" 2> /dev/null
for m in $(awk -F: '$1 ~ /(fs\/xfs\/xfs|virtio\/virtio_pci|block\/(virtio_blk|loop)|fuse\/fuse)\.ko/ { print $1 $2 }' "$modules/modules.dep"); do
    mkdir -p "$init/lib/modules/$version/${m%/*}"
    case $m in
        *.xz) xz -dc "$modules/$m" > "$init/lib/modules/$version/${m%.xz}" ;;
        *) cp "$modules/$m" "$init/lib/modules/$version/$m" ;;
    esac
done
/sbin/depmod -b "$init" "$version" 2> /dev/null
if [ -n "$scrub" ]; then
    mkdir "$init/scrub"
    find "$xfsprogs/root" "$work/root/usr/lib" -name '*.so*' -not -type d -exec cp -L {} "$init/scrub" \;
    cp "$xfsprogs/root/usr/sbin/xfs_scrub" "$init/scrub"
fi
cat > "$init/init" <<'I'
#!/bin/sh
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for m in virtio_pci virtio_blk xfs fuse loop; do modprobe $m 2> /dev/null; done
echo "uxfs: begin"
start=$(sed -n 's/.*uxfs\.start=\([^ ]*\).*/\1/p' /proc/cmdline)
if [ -n "$start" ]; then
    mount -t xfs /dev/vda /mnt
    for d in proc sys dev; do mount --move /$d /mnt/$d; done
    exec switch_root /mnt "$start"
fi
[ -b /dev/vdb ] && options="-o logdev=/dev/vdb" || options=
if mount -t xfs $options /dev/vda /mnt; then
    if [ -d /scrub ]; then
        /scrub/ld-linux-x86-64.so.2 --library-path /scrub /scrub/xfs_scrub -n /mnt 2>&1 | tr '\r' '\n' | grep -E '^(Error|Warning|Corruption|Unfixable)' |
            sed 's/^/uxfs: scrub: /'
    fi
    umount /mnt && echo "uxfs: recovered"
else
    dmesg | grep XFS | tail -n 5 | sed 's/^/uxfs: refused: /'
fi
poweroff -n -f
I
chmod +x "$init/init"
rm -rf "$dir"
mkdir -p "$dir"
( cd "$init" && find . | cpio -o -H newc 2> /dev/null | gzip -1 > "$dir/initrd" )
kernel=$(find "$work/root" -name "vmlinuz*" -type f | head -n 1)
cp "$kernel" "$dir/vmlinuz"
cp "$0" "$dir"
echo "Linux $version"
