#!/usr/bin/env bash
# Makes stand-ins for base images where no registry can be reached, under the
# same names, from packages of the Debian release that this machine runs:
#
#   standins.sh golang:1.26-bookworm haproxy:3.0 redis:7.4
#
# An image that is there already is left alone. The first run makes a root file
# system, for which it has to be root; later runs find it in the cache.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

cache="${XDG_CACHE_HOME:-$HOME/.cache}/tokenring"
tarball="$cache/standin.tar"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

say() { echo "standins: $*"; }
die() {
	say "$*" >&2
	exit 1
}

install_debootstrap() {
	command -v debootstrap >/dev/null && return
	say "installing debootstrap with apt-get"
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends debootstrap >/dev/null
}

# The mirror that apt is set up with for a release, in whichever format.
mirror() {
	apt-get indextargets --format '$(CREATED_BY) $(COMPONENT) $(REPO_URI) $(RELEASE) $(CODENAME)' |
		awk -v release="$1" '$1 == "Packages" && $2 == "main" && ($4 == release || $5 == release) { print $3; exit }'
}

# One root file system with all that the stand-ins run. Nothing is configured,
# only unpacked: that halves the time, and the programs need no more.
make_tarball() {
	[[ -f $tarball ]] && return
	[[ $EUID == 0 ]] || die "debootstrap has to be run by root"
	install_debootstrap
	local root="$work/root" release url package
	release=$(. /etc/os-release && echo "$VERSION_CODENAME")
	url=$(mirror "$release")
	[[ -n $url ]] || die "apt knows no mirror of $release"
	say "making a root file system of $release, which takes a minute"
	debootstrap --foreign --variant=minbase --include=haproxy,redis-server "$release" "$root" "$url" \
		>"$work/log" 2>&1 || {
		tail -n 20 "$work/log" >&2
		die "debootstrap failed"
	}
	for package in $(<"$root/debootstrap/base"); do
		dpkg-deb --fsys-tarfile "$root"/var/cache/apt/archives/"$package"_*.deb |
			tar -C "$root" --keep-directory-symlink -x
	done
	rm -rf "$root"/{dev,proc,debootstrap,var/cache/apt,var/lib/apt,usr/share/doc,usr/share/locale,usr/share/zoneinfo}
	mkdir -p "$cache"
	tar -C "$root" -cf "$tarball.part" .
	mv "$tarball.part" "$tarball"
}

# import IMAGE TARBALL INSTRUCTION...
import() {
	local image=$1 from=$2 changes=() instruction
	shift 2
	for instruction; do
		changes+=(--change "$instruction")
	done
	docker import "${changes[@]}" "$from" "$image" >/dev/null
}

# Lists what the build cache of this machine has for the program as the Dockerfile builds
# it. Compiling all of it again takes two minutes.
cached() {
	CGO_ENABLED=0 go list -trimpath -deps -export -f '{{.Export}}' ./cmd/tokenring >"$work/outputs"
	find "$1" -name '*-a' -exec cat {} + |
		awk 'NR == FNR { gsub(/.*\/|-d$/, ""); wanted[$0]; next }
			$3 in wanted { print substr($2, 1, 2) "/" $2 "-a\n" substr($3, 1, 2) "/" $3 "-d" }' "$work/outputs" - |
		sort -u
}

# The compiler is this machine's own, and so are the certificates it trusts. What no
# build needs is left out, since the classic builder walks all files at every step.
import_golang() {
	local want=${1#golang:} have goroot gocache
	want=go${want%%-*}
	have=$(go env GOVERSION)
	[[ $have. == "$want".* ]] || die "$1 stands for $want, this machine has $have"
	goroot=$(go env GOROOT)
	gocache=$(go env GOCACHE)
	cp "$tarball" "$work/golang.tar"
	tar -rf "$work/golang.tar" --transform 's,^\./,./usr/local/go/,' \
		--exclude=testdata --exclude='*_test.go' --exclude=./src/cmd \
		-C "$goroot" ./bin ./pkg ./src ./VERSION ./go.env
	tar -rhf "$work/golang.tar" -C / ./etc/ssl/certs/ca-certificates.crt
	cached "$gocache" >"$work/cached"
	tar -rf "$work/golang.tar" --transform 's,^,./go/cache/,' -C "$gocache" -T "$work/cached"
	import "$1" "$work/golang.tar" \
		'ENV PATH=/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
		'ENV GOPATH=/go' 'ENV GOCACHE=/go/cache' 'ENV GOTOOLCHAIN=local' 'WORKDIR /go' 'CMD ["sh"]'
}

[[ $# -gt 0 ]] || die "usage: standins.sh IMAGE..."
for image; do
	docker image inspect "$image" >/dev/null 2>&1 && continue
	make_tarball
	say "importing $image"
	case $image in
	golang:*) import_golang "$image" ;;
	haproxy:*)
		import "$image" "$tarball" 'USER 99' 'ENTRYPOINT ["haproxy", "-W", "-db"]' \
			'CMD ["-f", "/usr/local/etc/haproxy/haproxy.cfg"]'
		;;
	redis:*) import "$image" "$tarball" 'USER 999' 'WORKDIR /data' 'CMD ["redis-server"]' ;;
	*) die "no stand-in for $image" ;;
	esac
done
