#!/usr/bin/env bash
# Builds Debian packages of the working tree into bin/deb, byte for byte the same wherever it runs with the same Go and compilers.
#
#   scripts/deb.sh [amd64] [arm64]      without one: both
#   scripts/deb.sh --version            says which version they would have
#
# DEB_VERSION, SOURCE_DATE_EPOCH and VERSION (what the programs say) follow from git unless they are given, DEB_OUT is the folder,
# DEB_XZ (6) how hard to compress: 0 is ten times as fast, for packages that are only looked at.
# gantry-gpu needs a C compiler for its architecture: where there is none, gantry-agent goes without, and this says so.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export LC_ALL=C TZ=UTC
umask 022

readonly maintainer='The Gantry authors <gantry@users.noreply.github.com>'
readonly packages=(gantry gantry-scheduler gantry-agent gantry-s3)
jobs=${P:-2}
out=${DEB_OUT:-bin/deb}

die() {
	printf 'deb: %s\n' "$*" >&2
	exit 1
}

# debian_version makes a Debian version of what git describes: v1.2.3 is 1.2.3, v1.3.0-rc.1 is 1.3.0~rc.1, so many commits
# later is 1.2.3+5.g1a2b3c4, and without any tag the count of commits keeps versions in order.
debian_version() {
	local text dirty=''
	text=$(git describe --tags --match 'v[0-9]*' --dirty 2>/dev/null) ||
		text=v0.0-$(git rev-list --count HEAD)-g$(git describe --always --exclude '*' --dirty)
	if [[ $text == *-dirty ]]; then
		text=${text%-dirty} dirty=+dirty
	fi
	text=${text#v}
	if [[ $text =~ ^(.*)-([0-9]+)-(g[0-9a-f]+)$ ]]; then
		printf '%s+%s.%s%s\n' "${BASH_REMATCH[1]/-/\~}" "${BASH_REMATCH[2]}" "${BASH_REMATCH[3]}" "$dirty"
	else
		printf '%s%s\n' "${text/-/\~}" "$dirty"
	fi
}

compiler_of() {
	local cc=gcc
	case $1:$(uname -m) in
	amd64:x86_64 | arm64:aarch64) ;;
	arm64:*) cc=aarch64-linux-gnu-gcc ;;
	amd64:*) cc=x86_64-linux-gnu-gcc ;;
	esac
	command -v "$cc" >/dev/null && printf '%s\n' "$cc"
}

# build puts the programs of an architecture into a folder.
build() {
	local arch=$1 to=$2 cc flags
	flags=(-p "$jobs" -trimpath -buildvcs=false -ldflags "-s -w -X main.version=$VERSION")
	CGO_ENABLED=0 GOARCH=$arch GOAMD64=v1 go build "${flags[@]}" -o "$to/" \
		./cmd/gantry ./cmd/gantry-scheduler ./cmd/gantry-agent ./cmd/gantry-logger ./cmd/gantry-net ./cmd/gantry-s3
	if cc=$(compiler_of "$arch"); then
		CGO_ENABLED=1 GOARCH=$arch GOAMD64=v1 CC=$cc CGO_CFLAGS='-O2 -Wno-deprecated-declarations' CGO_LDFLAGS='-O2' \
			go build "${flags[@]}" -o "$to/" ./cmd/gantry-gpu
	else
		printf 'deb: no C compiler for %s: gantry-agent has no gantry-gpu there, and offers no GPUs\n' "$arch" >&2
	fi
}

# conditions writes the licences of all modules that are linked into programs of an architecture.
conditions() {
	local arch=$1 path version dir file
	shift
	printf 'These programs are linked with Go and with the modules below, under the licences that follow.\n'
	printf '\n======== Go %s\n\n' "$(go env GOVERSION)"
	cat "$(go env GOROOT)/LICENSE"
	CGO_ENABLED=1 GOARCH=$arch go list -deps -f '{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}} {{.Dir}}{{end}}{{end}}' "$@" | sort -u |
		while read -r path version dir; do
			for file in "$dir"/LICEN[CS]E* "$dir"/COPYING* "$dir"/CONDITION* "$dir"/PATENTS*; do
				[ -f "$file" ] || continue
				printf '\n======== %s %s: %s\n\n' "$path" "$version" "${file##*/}"
				cat "$file"
			done
		done
}

# libc is the dependency that a program with a C library has: the newest of its versions that the program names.
libc() {
	[ -e "$1" ] || return 0
	grep -aoE 'GLIBC_2\.[0-9]+' "$1" | sort -uV | tail -n 1 | sed 's/GLIBC_\(.*\)/libc6 (>= \1), /'
}

# docs writes what every package has below usr/share/doc.
docs() {
	local package=$1 dir=$2
	install -D -m 0644 deploy/deb/copyright "$dir/copyright"
	printf '%s (%s) unstable; urgency=medium\n\n  * Built from %s.\n\n -- %s  %s\n' \
		"$package" "$DEB_VERSION" "$VERSION" "$maintainer" "$(date -R -d "@$SOURCE_DATE_EPOCH")" >"$dir/changelog"
	gzip -9n "$dir/changelog"
}

# fill puts the files of a package in place, as its list says.
fill() {
	local package=$1 bins=$2 root=$3 how from to
	while read -r how from to; do
		case $how in
		'#' | '#'* | '') continue ;;
		link)
			mkdir -p "$root/$(dirname "$to")"
			ln -s "$from" "$root/$to"
			continue
			;;
		esac
		case $from in
		BIN/*)
			from=$bins/${from#BIN/}
			if [[ $from == */gantry-gpu && ! -e $from ]]; then
				continue
			fi
			;;
		systemd/*) ;;
		*) from=deploy/$from ;;
		esac
		install -D -m "$how" "$from" "$root/$to"
		case $to in usr/share/man/*) gzip -9n "$root/$to" ;; esac
	done <"deploy/deb/$package/install"
	if [ -e "deploy/deb/$package/lintian-overrides" ]; then
		install -D -m 0644 "deploy/deb/$package/lintian-overrides" "$root/usr/share/lintian/overrides/$package"
	fi
}

# control writes what dpkg is told of a package.
control() {
	local package=$1 arch=$2 root=$3 size script
	mkdir "$root/DEBIAN"
	(cd "$root" && find . -path ./DEBIAN -prune -o -type f -print | sort | sed 's|^\./||' | tr '\n' '\0' | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
	(cd "$root" && find etc -type f 2>/dev/null | sort | sed 's|^|/|') >"$root/DEBIAN/conffiles" || true
	[ -s "$root/DEBIAN/conffiles" ] || rm "$root/DEBIAN/conffiles"
	# As dpkg-gencontrol counts: files in whole KiB, and one for everything else.
	size=$(find "$root" -path "$root/DEBIAN" -prune -o -printf '%y %s\n' | awk '{n += $1 == "f" ? int(($2 + 1023) / 1024) : 1} END {print n}')
	sed -e "s|@ARCH@|$arch|; s|@VERSION@|$DEB_VERSION|; s|@SIZE@|$size|; s|@MAINTAINER@|$maintainer|" \
		-e "s|@LIBC@|$(libc "$root/usr/libexec/gantry/gantry-gpu")|" "deploy/deb/$package/control" >"$root/DEBIAN/control"
	for script in preinst postinst prerm postrm; do
		if [ -e "deploy/deb/$package/$script" ]; then
			install -m 0755 "deploy/deb/$package/$script" "$root/DEBIAN/$script"
		fi
	done
	chmod 0644 "$root"/DEBIAN/{control,md5sums}
}

# programs_of lists the packages of Go that a Debian package is built from.
programs_of() {
	sed -n 's|^[0-9]* BIN/\([^ ]*\) .*|./cmd/\1|p' "deploy/deb/$1/install"
}

package() {
	local package=$1 arch=$2 bins=$3 root=$4 programs
	mapfile -t programs < <(programs_of "$package")
	mkdir -p "$root"
	fill "$package" "$bins" "$root"
	docs "$package" "$root/usr/share/doc/$package"
	conditions "$arch" "${programs[@]}" | gzip -9n >"$root/usr/share/doc/$package/third-party-conditions.gz"
	control "$package" "$arch" "$root"
	find "$root" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
	dpkg-deb --root-owner-group -Zxz "-z${DEB_XZ:-6}" --threads-max=1 --build "$root" "$out/${package}_${DEB_VERSION}_$arch.deb" >/dev/null
	printf 'deb: %s\n' "$out/${package}_${DEB_VERSION}_$arch.deb"
}

if [ "${1:-}" = --version ]; then
	debian_version
	exit
fi
archs=("$@")
[ "${#archs[@]}" -gt 0 ] || archs=(amd64 arm64)
for arch in "${archs[@]}"; do
	[[ $arch == amd64 || $arch == arm64 ]] || die "packages are for amd64 and arm64, not for $arch"
done
command -v dpkg-deb >/dev/null || die 'dpkg-deb is missing: this needs a Debian system'
: "${VERSION:=$(git describe --tags --always --dirty)}"
: "${DEB_VERSION:=$(debian_version)}"
: "${SOURCE_DATE_EPOCH:=$(git log -1 --format=%ct)}"
export SOURCE_DATE_EPOCH
dpkg --validate-version "$DEB_VERSION"

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$out"
# Those of other versions would only be installed by mistake.
for old in "$out"/gantry*.deb; do
	[[ ! -e $old || $old == *"_${DEB_VERSION}_"* ]] || rm -- "$old"
done
for arch in "${archs[@]}"; do
	build "$arch" "$scratch/bin-$arch"
	for name in "${packages[@]}"; do
		package "$name" "$arch" "$scratch/bin-$arch" "$scratch/$arch/$name"
	done
done
