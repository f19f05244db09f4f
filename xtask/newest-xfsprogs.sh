#!/bin/sh
# Puts Debian's newest xfsprogs with the libraries that it needs into a folder of its own; nothing else on the machine changes.
# Volumes with parent pointers and exchange-range need it: the stable release's xfs_repair does not know them.
# Usage: newest-xfsprogs.sh DIR
set -eu
dir=$1
src=/etc/apt/sources.list.d/debian.sources
[ -r "$src" ] || { echo "newest-xfsprogs: no $src to learn the archive from" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/debs" "$work/root"
awk 'BEGIN { RS = ""; ORS = "\n\n" } !/security/ { gsub(/Suites:[^\n]*/, "Suites: sid"); print }' "$src" > "$work/new.sources"
apt() {
    apt-get -q -o APT::Sandbox::User=root -o Dir::Etc::sourcelist="$work/new.sources" -o Dir::Etc::sourceparts=- \
        -o Dir::State::lists="$work/lists" -o Dir::Cache="$work/cache" "$@"
}
apt update >/dev/null
cd "$work/debs"
apt download xfsprogs libc6 libblkid1 libdevmapper1.02.1 libedit2 libinih1 liburcu8t64 libuuid1 libtinfo6 libbsd0 libmd0 \
    libselinux1 libudev1 libpcre2-8-0 libgcc-s1 >/dev/null
for d in *.deb; do dpkg -x "$d" "$work/root"; done
rm -rf "$dir"
mkdir -p "$dir/bin"
cp -a "$work/root" "$dir/root"
ld=$(find "$dir/root" -name 'ld-linux-*.so.*' | head -n 1)
libs=$(find "$dir/root" -name '*.so*' -printf '%h\n' | sort -u | paste -sd:)
for p in "$dir"/root/usr/sbin/*; do
    head -c 4 "$p" | grep -q ELF || continue
    printf '#!/bin/sh\nexec "%s" --library-path "%s" "%s" "$@"\n' "$ld" "$libs" "$p" > "$dir/bin/${p##*/}"
    chmod +x "$dir/bin/${p##*/}"
done
"$dir/bin/mkfs.xfs" -V
