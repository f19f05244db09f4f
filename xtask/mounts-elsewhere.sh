#!/bin/sh
# Runs tests that mount under the kernel that other-kernel.sh put into KERNEL, in QEMU without KVM. Their machine is a volume that uxfs
# makes of this one's Debian packages, of what Debian does not have, and of the tests, each under the path it has here.
# Says what they say; fails if one of them fails.
# Usage: mounts-elsewhere.sh KERNEL CACHE UXFS TEST...    (CACHE/xfsprogs and CACHE/suites)
set -eu
kernel=$1 tools=${2%/} uxfs=$3
shift 3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
mkdir -p "$root/usr/bin" "$root/usr/sbin" "$root/usr/lib" "$root/usr/lib64"
for d in bin sbin lib lib64; do ln -s usr/$d "$root/$d"; done
# shellcheck disable=SC2046
packages=$(apt-cache depends --recurse --installed --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances \
    $(dpkg-query -W -f '${Essential} ${Package}\n' | sed -n 's/^yes //p') xfsprogs procps fuse3 attr acl dbench stress-ng e2fsprogs linux-libc-dev |
    grep '^[a-z0-9]' | sort -u)
for p in $packages; do dpkg -L "$p" 2> /dev/null || true; done | grep -vE '^/\.$|^/usr/share/(doc|man|info|locale)/' | sort -u > "$work/files"
# Of what a package names, this machine may lack something.
tar -C / --no-recursion --ignore-failed-read -cf - -T "$work/files" 2> /dev/null | tar -C "$root" -xf - 2> /dev/null || true
tar -C / -cf - etc/passwd etc/group etc/ld.so.cache etc/alternatives "${tools#/}/xfsprogs" "${tools#/}/suites" | tar -C "$root" -xf -
mkdir -p "$root/dev" "$root/proc" "$root/sys" "$root/tmp" "$root/run" "$root/root"
ln -sf /proc/self/mounts "$root/etc/mtab"
cp "$(command -v busybox)" "$root/usr/bin/busybox"
mkdir -p "$root${uxfs%/*}" "$root/tests"
strip -o "$root$uxfs" "$uxfs"
for t in "$@"; do strip -o "$root/tests/${t##*/}" "$t"; done
cat > "$root/start" << I
#!/bin/bash
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=$HOME
mkdir -p /dev/shm /dev/pts
for d in /tmp /run /dev/shm; do mount -t tmpfs -o mode=1777 tmpfs \$d; done
mount -t devpts devpts /dev/pts
failed=
for t in /tests/*; do
    echo "\${t##*/} on Linux \$(uname -r)"
    \$t --test-threads=1 --color=never 2>&1 || failed=1
done
[ -n "\$failed" ] || echo "uxfs: all passed"
busybox poweroff -f
I
chmod +x "$root/start"
truncate -s 1500m "$work/disk"
# What the oldest of these kernels mounts.
"$uxfs" mkfs -q -c options=lts_5.10 -p "$root" "$work/disk"
qemu-system-x86_64 -accel tcg -cpu max -smp 2 -m 4096 -nodefaults -no-reboot -display none -serial stdio -kernel "$kernel/vmlinuz" \
    -initrd "$kernel/initrd" -append "console=ttyS0 quiet panic=-1 rdinit=/init mitigations=off uxfs.start=/start" \
    -drive "format=raw,if=virtio,cache=unsafe,file=$work/disk" < /dev/null | tee "$work/said"
grep -q "uxfs: all passed" "$work/said"
