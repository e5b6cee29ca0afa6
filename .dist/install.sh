#!/bin/sh
# install.sh [--prefix DIR] [SOURCE]: installs flashplan without a compiler and without root.
#
# SOURCE is an archive of `make dist`, a folder with such archives and their SHA256SUMS, or the http(s) address of such a folder.
# Without SOURCE: the unpacked archive in which this script lies. DIR is ~/.local unless it is named; flashplan goes into DIR/bin, the
# three programs that it calls into DIR/libexec/flashplan. The checksum is compared before anything is unpacked.
set -eu
prefix=${HOME:?set HOME, or name a folder with --prefix}/.local
source=''
while [ $# -gt 0 ]; do
  case $1 in
    --prefix) prefix=${2:?--prefix needs a folder}; shift ;;
    --help | -h) sed -n '2,6s/^# *//p' "$0"; exit 0 ;;
    -*) echo "install.sh: unknown option $1; see --help" >&2; exit 1 ;;
    *) source=$1 ;;
  esac
  shift
done
fail() { echo "install.sh: $1" >&2; exit 1; }

[ "$(uname -s)" = Linux ] || fail "flashplan runs on Linux, and this is $(uname -s)"
case $(uname -m) in
  x86_64 | amd64) processor=x86_64 ;;
  aarch64 | arm64) processor=aarch64 ;;
  *) fail "there are programs for x86_64 and aarch64, and this is $(uname -m); build from source with 'make build'" ;;
esac

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

fetch() { # an address, then a file
  if command -v curl >/dev/null; then curl -fsSL --retry 3 -o "$2" "$1"
  elif command -v wget >/dev/null; then wget -q -O "$2" "$1"
  else fail 'curl or wget is needed to fetch an address; fetch the archive yourself, and name its file'; fi \
    || fail "cannot fetch $1"
}
# the archive for this processor in a list of checksums
listed() { sed -n "s/^[0-9a-f]\{64\} [ *]\(flashplan-[^ /]*-$processor-linux\.tar\.gz\)\$/\1/p" "$1" | tail -1; }

case $source in
  '')
    unpacked=$(cd "$(dirname "$0")" && pwd)
    [ -x "$unpacked/flashplan" ] || fail 'name an archive, a folder of archives, or its address; see --help' ;;
  http://* | https://*)
    fetch "${source%/}/SHA256SUMS" "$work/SHA256SUMS"
    archive=$(listed "$work/SHA256SUMS")
    [ -n "$archive" ] || fail "$source has no archive for $processor"
    fetch "${source%/}/$archive" "$work/$archive" ;;
  *)
    [ -e "$source" ] || fail "$source does not exist"
    folder=$source
    [ -d "$folder" ] || folder=$(dirname "$source")
    [ -f "$folder/SHA256SUMS" ] || fail "$folder has no SHA256SUMS, with which an archive is compared"
    cp "$folder/SHA256SUMS" "$work"
    if [ -d "$source" ]; then archive=$(listed "$work/SHA256SUMS"); else archive=$(basename "$source"); fi
    [ -n "$archive" ] || fail "$source has no archive for $processor"
    case $archive in *-"$processor"-linux.tar.gz) ;; *) fail "$archive is not for $processor" ;; esac
    cp "$folder/$archive" "$work" || fail "$folder has no $archive" ;;
esac
if [ -z "${unpacked:-}" ]; then
  grep "[ *]$archive\$" "$work/SHA256SUMS" >"$work/sum" || fail "SHA256SUMS does not name $archive"
  (cd "$work" && sha256sum -c sum >/dev/null 2>&1) \
    || fail "the checksum of $archive is not the one in SHA256SUMS: it is damaged or was changed; fetch it again. Nothing was installed"
  tar -xzf "$work/$archive" -C "$work"
  unpacked=$work/${archive%.tar.gz}
fi
# one that does not start here changes nothing
version=$("$unpacked/flashplan" --version) || fail "the programs do not start on this machine; build from source with 'make build'"

libexec=$prefix/libexec
mkdir -p "$prefix/bin" "$libexec" || fail "cannot write to $prefix; name another folder with --prefix"
new=$libexec/.flashplan-new
rm -rf "$new" && mkdir "$new"
cp "$unpacked"/profile "$unpacked"/plan "$unpacked"/run "$new"
cp "$unpacked"/libz3.so* "$new"
rm -rf "$libexec/flashplan" && mv "$new" "$libexec/flashplan"
cp "$unpacked/flashplan" "$prefix/bin/.flashplan-new" && mv "$prefix/bin/.flashplan-new" "$prefix/bin/flashplan"

data=$prefix/share
completions() { # a shell, then the file
  mkdir -p "$(dirname "$2")" && "$prefix/bin/flashplan" --completions "$1" >"$2"
}
completions bash "$data/bash-completion/completions/flashplan"
completions zsh "$data/zsh/site-functions/_flashplan"
completions fish "$data/fish/vendor_completions.d/flashplan.fish"

echo "installed $version in $prefix/bin"
plan=$libexec/flashplan/plan
if ! "$plan" --version >/dev/null 2>&1 && [ -d "$unpacked/glibc" ]; then
  # Z3 needs glibc, and this system has another C library: plan starts with the archive's own
  cp -R "$unpacked/glibc" "$libexec/flashplan"
  mv "$plan" "$plan-glibc"
  {
    echo '#!/bin/sh'
    echo 'here=$(dirname "$(readlink -f "$0")")'
    echo 'exec "$here"/glibc/ld-linux-* --argv0 plan --library-path "$here/glibc:$here" "$here/plan-glibc" "$@"'
  } >"$plan"
  chmod 755 "$plan"
fi
said=$("$plan" --version 2>&1) || {
  echo "install.sh: warning: \`plan\` does not start here: $said" >&2
  echo 'Models can be planned on another machine from device.toml and model.toml, and run here.' >&2
}
case :$PATH: in
  *:"$prefix/bin":*) ;;
  *) echo "add it to your PATH: export PATH=\"$prefix/bin:\$PATH\"" ;;
esac
echo 'then: flashplan chat hf:OWNER/REPO:QUANT, or flashplan --help'
